"""Licence plates as tracks of five noisy frames, rendered from a 5x7 font or read from an .npz file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BLANK = 0  # CTC's blank; character i of the alphabet is class i + 1, so there are 37 classes
FRAMES, HEIGHT, WIDTH = 5, 32, 128
SCALE, PITCH = 3, 17  # pixels per font dot, pixels per character

# One character a word: five columns of seven dots, lowest bit on top.
_FONT = """
3E5149453E 00427F4000 4261514946 2141454B31 1814127F10 2745454539 3C4A494930 0171090503 3649494936
064949291E 7E1111117E 7F49494936 3E41414122 7F4141221C 7F49494941 7F09090901 3E4149497A 7F0808087F
00417F4100 2040413F01 7F08142241 7F40404040 7F020C027F 7F0408107F 3E4141413E 7F09090906 3E4151215E
7F09192946 4649494931 01017F0101 3F4040403F 1F2040201F 3F4038403F 6314081463 0708700807 6151494543
"""


class Plates(NamedTuple):
    """A batch: frames (B, 5, 3, 32, 128) in [-1, 1], targets (B, length) of class numbers."""

    frames: torch.Tensor
    targets: torch.Tensor


def glyphs() -> Array:
    """The font as an array (36, 21, 15) of 0 and 1."""
    columns = np.array([list(bytes.fromhex(word)) for word in _FONT.split()], dtype=np.uint8)
    dots = (columns[:, None, :] >> np.arange(7)[None, :, None]) & 1
    return dots.repeat(SCALE, axis=1).repeat(SCALE, axis=2).astype(np.float32)


class SyntheticPlates:
    """Draws plates. Strong augmentation: shift, blur, contrast, brightness, shadow and noise, anew for each frame."""

    def __init__(self, length: int, augmentation: str) -> None:
        self.length, self.strength = length, {"strong": 1.0, "light": 0.4}[augmentation]
        self.glyphs = glyphs()

    def draw(self, random: np.random.Generator, count: int) -> Plates:
        labels = random.integers(len(ALPHABET), size=(count, self.length))
        frames = np.stack([self.track(random, row) for row in labels])
        return Plates(torch.from_numpy(frames), torch.from_numpy(labels + 1))

    def track(self, random: np.random.Generator, label: Array) -> Array:
        text = np.zeros((HEIGHT, WIDTH), np.float32)
        left = (WIDTH - self.length * PITCH) // 2
        for place, character in enumerate(label):
            glyph = self.glyphs[character]
            column = left + place * PITCH + 1
            text[5 : 5 + glyph.shape[0], column : column + glyph.shape[1]] = glyph
        ink, paper = random.uniform(-0.9, -0.4, 3), random.uniform(0.3, 0.9, 3)
        return np.stack([self.frame(random, text, ink, paper) for _ in range(FRAMES)])

    def frame(self, random: np.random.Generator, text: Array, ink: Array, paper: Array) -> Array:
        strength = self.strength
        down, right = random.integers(-round(2 * strength), round(2 * strength) + 1, size=2)
        text = np.roll(text, (down, right), axis=(0, 1))
        if random.random() < 0.5 * strength:  # motion blur
            text = (text + np.roll(text, 1, axis=1) + np.roll(text, 2, axis=1)) / 3
        image = paper[:, None, None] + (ink - paper)[:, None, None] * text
        image = image * (1 + strength * random.uniform(-0.3, 0.3)) + strength * random.uniform(-0.2, 0.2)
        shadow = np.linspace(0, strength * random.uniform(-0.3, 0.3), WIDTH)
        noise = random.normal(0, 0.1 * strength, (3, HEIGHT, WIDTH))
        clipped: Array = np.clip(image + shadow + noise, -1, 1).astype(np.float32)
        return clipped


class RecordedPlates:
    """Plates from an .npz file: `frames` uint8 (N, 5, 32, 128, 3) and `labels` (N,) strings of one length."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.frames, labels = file["frames"], [str(label) for label in file["labels"]]
        if self.frames.shape[1:] != (FRAMES, HEIGHT, WIDTH, 3):
            shape = tuple(self.frames.shape[1:])
            raise ValueError(
                f"{path}: frames have the shape {shape}, not (5, 32, 128, 3); resize them first."
            )
        self.labels = np.array([[ALPHABET.index(character) for character in label] for label in labels])

    def draw(self, random: np.random.Generator, count: int) -> Plates:
        chosen = random.integers(len(self.labels), size=count)
        frames = torch.from_numpy(self.frames[chosen]).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        return Plates(frames, torch.from_numpy(self.labels[chosen] + 1))


class PlateLoader:
    """Batches for ever; a batch depends on seed and step alone, so a resumed run sees what it would have seen."""

    def __init__(self, plates: SyntheticPlates | RecordedPlates, batch_size: int, seed: int) -> None:
        self.plates, self.batch_size, self.seed, self.step = plates, batch_size, seed, 0

    def __iter__(self) -> Iterator[Plates]:
        while True:
            self.step += 1
            yield self.plates.draw(np.random.default_rng((self.seed, self.step)), self.batch_size)


def build_plates(config: dict[str, Any], augmentation: str) -> SyntheticPlates | RecordedPlates:
    if config["plates_file"]:
        return RecordedPlates(Path(config["plates_file"]))
    return SyntheticPlates(config["plate_length"], augmentation)
