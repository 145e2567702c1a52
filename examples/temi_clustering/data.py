"""Embeddings and their nearest neighbours: DINOv2 class tokens of images, digits, or a synthetic mixture.

Embeddings are expensive, so they are kept on disk and read from there the next time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Batch = dict[str, Tensor]
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def load_embeddings(settings: dict[str, Any], cache: Path, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """(samples, dim) embeddings and their labels, from the cache when it holds these settings."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    path = cache / f"{settings['source']}-{key}.pt"
    if path.exists() and not recompute:
        stored = torch.load(path, weights_only=True)
        return stored["embeddings"], stored["labels"]
    makers = {"dinov2": dinov2_embeddings, "digits": digits_embeddings, "mixture": mixture_embeddings}
    if settings["source"] not in makers:
        raise ValueError(f"data.source is '{settings['source']}'; choose one of {', '.join(makers)}.")
    embeddings, labels = makers[settings["source"]](settings)
    cache.mkdir(parents=True, exist_ok=True)
    mine = path.with_suffix(f".{os.getpid()}")  # renamed when it is whole: another run may be reading
    torch.save({"embeddings": embeddings, "labels": labels}, mine)
    mine.replace(path)
    return embeddings, labels


def dinov2_embeddings(settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Class tokens of a torch.hub backbone for the images of an .npz file (`images` uint8 NHWC, `labels`)."""
    backbone = torch.hub.load(  # type: ignore[no-untyped-call]
        settings.get("hub_repo", "facebookresearch/dinov2"),
        settings.get("hub_model", "dinov2_vitb14"),
        source=settings.get("hub_source", "github"),
        trust_repo=True,
    ).eval()
    with np.load(settings["images"]) as archive:
        images, labels = archive["images"], archive["labels"]
    size = int(settings.get("image_size", 224))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    tokens = []
    with torch.no_grad():
        for start in range(0, len(images), 64):
            pixels = torch.from_numpy(images[start : start + 64]).permute(0, 3, 1, 2).float() / 255
            pixels = F.interpolate(pixels, size=(size, size), mode="bicubic", antialias=True)
            tokens.append(backbone((pixels - mean) / std))
    return torch.cat(tokens), torch.from_numpy(labels).long()


def digits_embeddings(settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, centred and carried into the embedding space by a fixed random basis."""
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    digits = load_digits()
    pixels = torch.from_numpy(digits.data).float()
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(pixels.shape[1], settings["dim"], generator=generator)
    embeddings = (pixels - pixels.mean(dim=0)) @ basis
    return embeddings * (settings["norm"] / embeddings.norm(dim=1).mean()), torch.from_numpy(digits.target)


def mixture_embeddings(settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Classes as directions, samples scattered around them, with the mean norm of the real class tokens."""
    generator = torch.Generator().manual_seed(0)
    classes, dim = settings["classes"], settings["dim"]
    centres = F.normalize(torch.randn(classes, dim, generator=generator), dim=1)
    labels = torch.arange(settings["samples"]) % classes
    scatter = torch.randn(settings["samples"], dim, generator=generator) / dim**0.5
    embeddings = centres[labels] + settings["scatter"] * scatter
    return embeddings * (settings["norm"] / embeddings.norm(dim=1).mean()), labels


def nearest_neighbours(embeddings: Tensor, count: int) -> Tensor:
    """(samples, count) indices of the most similar other samples, by cosine."""
    unit = F.normalize(embeddings, dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-2.0)
    return similarity.topk(count, dim=1).indices


class PairLoader:
    """Endless batches of a sample and one of its neighbours. Its state is the epoch and the place in it."""

    def __init__(self, embeddings: Tensor, neighbours: Tensor, batch_size: int, seed: int) -> None:
        if batch_size > len(embeddings):
            raise ValueError(f"batch {batch_size} is larger than the data set of {len(embeddings)} samples.")
        self.embeddings, self.neighbours = embeddings, neighbours
        self.batch_size, self.seed = batch_size, seed
        self.steps_per_epoch = len(embeddings) // batch_size
        self.step = 0

    def batch(self, step: int) -> Batch:
        """The batch of a given step; the same step always gives the same batch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.embeddings), generator=generator)
        choice = torch.randint(self.neighbours.shape[1], (len(order),), generator=generator)
        index = order[place * self.batch_size : (place + 1) * self.batch_size]
        partner = self.neighbours[index, choice[index]]
        return {
            "x": self.embeddings[index],
            "neighbour": self.embeddings[partner],
            "index": index,
            "epoch": torch.tensor(epoch),
        }

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.batch(self.step)
            self.step += 1
            yield batch
