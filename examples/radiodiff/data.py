"""Radio maps: buildings and a transmitter give the condition, simulated path loss gives the map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
SIZE = 32  # pixels a side


class Batch(NamedTuple):
    """Maps (B, 1, 32, 32) in [-1, 1], conditions (B, 2, 32, 32), and all noise of the step."""

    maps: Tensor
    condition: Tensor
    noise: Tensor  # like the latents
    time: Tensor  # (B,) in [1e-4, 1]


def simulate(random: np.random.Generator) -> tuple[Array, Array]:
    """One city block: its condition (2, 32, 32) and its map (1, 32, 32)."""
    buildings = np.zeros((SIZE, SIZE), np.float32)
    for _ in range(random.integers(3, 7)):
        row, column = random.integers(0, SIZE - 8, size=2)
        height, width = random.integers(4, 9, size=2)
        buildings[row : row + height, column : column + width] = 1
    row, column = random.integers(2, SIZE - 2, size=2)
    buildings[row - 1 : row + 2, column - 1 : column + 2] = 0  # the transmitter stands outside

    rows, columns = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    distance = np.hypot(rows - row, columns - column)
    walls = np.zeros((SIZE, SIZE), np.float32)
    samples = 16  # points on the ray from the transmitter to each pixel
    for share in np.linspace(0, 1, samples):
        i, j = (
            np.rint(row + share * (rows - row)).astype(int),
            np.rint(column + share * (columns - column)).astype(int),
        )
        walls += buildings[i, j]
    loss = 20 * np.log10(distance + 1) + 15 * (walls / samples) * distance / 8  # dB, relative to 1 pixel
    beacon = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 8)
    gain = np.clip(1 - loss / 30, -1, 1).astype(np.float32)
    return np.stack([buildings, beacon]).astype(np.float32), gain[None]


def load_maps(config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """All conditions and maps; from an .npz file with `conditions` and `maps`, or simulated."""
    if config["maps_file"]:
        with np.load(Path(config["maps_file"]), allow_pickle=False) as file:
            conditions, maps = (
                torch.from_numpy(file["conditions"]).float(),
                torch.from_numpy(file["maps"]).float(),
            )
        if conditions.shape[1:] != (2, SIZE, SIZE) or maps.shape[1:] != (1, SIZE, SIZE):
            raise ValueError(
                f"{config['maps_file']}: shapes {tuple(conditions.shape)} and {tuple(maps.shape)},"
                " not (N, 2, 32, 32) and (N, 1, 32, 32); resize them first."
            )
        return conditions, maps
    random = np.random.default_rng(0)
    pairs = [simulate(random) for _ in range(config["maps"])]
    return torch.from_numpy(np.stack([a for a, _ in pairs])), torch.from_numpy(
        np.stack([b for _, b in pairs])
    )


class MapLoader:
    """Batches for ever; a batch depends on seed and step alone, so a resumed run sees what it would have seen."""

    def __init__(
        self, conditions: Tensor, maps: Tensor, latent_shape: tuple[int, ...], batch_size: int, seed: int
    ):
        self.conditions, self.maps, self.latent_shape = conditions, maps, latent_shape
        self.batch_size, self.seed, self.step = batch_size, seed, 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.step += 1
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
            chosen = torch.randint(len(self.maps), (self.batch_size,), generator=generator)
            noise = torch.randn(self.batch_size, *self.latent_shape, generator=generator)
            time = 1e-4 + (1 - 1e-4) * torch.rand(self.batch_size, generator=generator)
            yield Batch(self.maps[chosen], self.conditions[chosen], noise, time)
