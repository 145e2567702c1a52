"""Sentences and their latents, from a small grammar or from files; and the noise of each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_SUBJECTS = ["cat", "dog", "fox", "bird", "horse", "child", "woman", "farmer"]
_ADJECTIVES = ["red", "big", "old", "shy", "wild", "tall", "small", "quiet"]
_VERBS = ["sees", "likes", "finds", "hears", "chases", "follows"]
MODES = ("unconditional", "l2t", "t2l")


class Batch(NamedTuple):
    """Tokens (B, L), latents (B, D), all noise of the step, and what is to be learnt in it."""

    tokens: Tensor
    masked: Tensor  # (B, L) bool: tokens hidden from the model
    latent: Tensor
    noise: Tensor
    text_time: Tensor  # (B,) share of hidden tokens
    latent_time: Tensor  # (B,) 0 is clean, 1 is noise
    mode: str


class Tokenizer:
    """One token a word; id 0 pads, the last id is the mask."""

    def __init__(self, sentences: list[str]) -> None:
        words = sorted({word for sentence in sentences for word in sentence.split()})
        self.ids = {word: index for index, word in enumerate(words, 1)}
        self.mask = len(words) + 1
        self.size = len(words) + 2

    def encode(self, sentence: str, length: int) -> list[int]:
        return ([self.ids[word] for word in sentence.split()] + [0] * length)[:length]


def grammar_sentences(count: int, random: np.random.Generator) -> list[str]:
    def noun() -> str:
        return f"{random.choice(_ADJECTIVES)} {random.choice(_SUBJECTS)}"

    return [f"the {noun()} {random.choice(_VERBS)} a {noun()} ." for _ in range(count)]


def latents_of(tokens: Tensor, size: int) -> Tensor:
    """Stands in for a sentence encoder: a fixed random projection of the words at their places, of unit variance."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(tokens.shape[1], int(tokens.max()) + 1, size, generator=generator)
    latents = table[torch.arange(tokens.shape[1]), tokens].mean(dim=1)
    return (latents - latents.mean(dim=0)) / latents.std(dim=0)


def load_sentences(config: dict[str, Any]) -> tuple[Tensor, Tensor, Tokenizer]:
    """All tokens (N, L), their latents (N, D), and the tokenizer."""
    if config["text_file"]:
        lines = [line for line in Path(config["text_file"]).read_text().splitlines() if line.strip()]
    else:
        lines = grammar_sentences(config["sentences"], np.random.default_rng(0))
    tokenizer = Tokenizer(lines)
    tokens = torch.tensor([tokenizer.encode(line, config["length"]) for line in lines])
    if not config["latents_file"]:
        return tokens, latents_of(tokens, config["latent_dim"]), tokenizer
    latents = torch.from_numpy(np.load(config["latents_file"], allow_pickle=False)).float()
    expected = (len(lines), config["latent_dim"])
    if latents.shape != expected:
        raise ValueError(
            f"{config['latents_file']}: the shape is {tuple(latents.shape)}, not {expected};"
            " make one latent for each line of the text file."
        )
    return tokens, latents, tokenizer


def noised(tokens: Tensor, latent: Tensor, mode: str, generator: torch.Generator) -> Batch:
    """Draws times, masks and noise; at least one token of each sentence is hidden unless the text is given."""
    count, length = tokens.shape
    text_time = torch.rand(count, generator=generator)
    latent_time = torch.rand(count, generator=generator)
    order = torch.rand(count, length, generator=generator)
    masked = (order < text_time[:, None]) | (order == order.amin(dim=1, keepdim=True))
    noise = torch.randn(latent.shape, generator=generator)
    if mode == "l2t":  # latent given, text to be written
        latent_time = torch.zeros(count)
    if mode == "t2l":  # text given, latent to be found
        text_time, masked = torch.zeros(count), torch.zeros(count, length, dtype=torch.bool)
    return Batch(tokens, masked, latent, noise, text_time, latent_time, mode)


class SentenceLoader:
    """Batches for ever; a batch depends on seed and step alone, so a resumed run sees what it would have seen."""

    def __init__(self, tokens: Tensor, latents: Tensor, batch_size: int, seed: int) -> None:
        self.tokens, self.latents, self.batch_size, self.seed, self.step = (
            tokens,
            latents,
            batch_size,
            seed,
            0,
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.step += 1
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
            chosen = torch.randint(len(self.tokens), (self.batch_size,), generator=generator)
            mode = MODES[int(torch.randint(len(MODES), (), generator=generator))]
            yield noised(self.tokens[chosen], self.latents[chosen], mode, generator)
