"""The frozen first stage: a KL autoencoder that turns a radio map into a small latent and back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

PATCH = 4


class KLAutoencoder(nn.Module):
    """One strided convolution each way. Loaded from a file, or fitted: the best linear one is PCA of the patches."""

    scale: Tensor

    def __init__(self, latent_channels: int) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(1, latent_channels, PATCH, PATCH)
        self.decoder = nn.ConvTranspose2d(latent_channels, 1, PATCH, PATCH)
        self.register_buffer("scale", torch.ones(1, latent_channels, 1, 1))
        self.requires_grad_(False)

    @torch.no_grad()
    def fit(self, maps: Tensor) -> None:
        patches = nn.functional.unfold(maps, PATCH, stride=PATCH).transpose(1, 2).reshape(-1, PATCH * PATCH)
        mean = patches.mean(dim=0)
        _, _, directions = torch.linalg.svd(patches - mean, full_matrices=False)
        basis = directions[: self.encoder.out_channels]
        self.encoder.weight.copy_(basis.view_as(self.encoder.weight))
        self.encoder.bias.copy_(-basis @ mean)  # type: ignore[union-attr]
        self.decoder.weight.copy_(basis.view_as(self.decoder.weight))
        self.decoder.bias.copy_(mean.mean())  # type: ignore[union-attr]
        self.scale.copy_(self.encoder(maps).std(dim=(0, 2, 3), keepdim=True))

    def encode(self, maps: Tensor) -> Tensor:
        """The mean of the posterior, at unit variance."""
        latent: Tensor = self.encoder(maps) / self.scale
        return latent

    def decode(self, latent: Tensor) -> Tensor:
        maps: Tensor = self.decoder(latent * self.scale)
        return maps


def load_vae(latent_channels: int, path: str | None, maps: Tensor) -> KLAutoencoder:
    vae = KLAutoencoder(latent_channels)
    if path:
        vae.load_state_dict(torch.load(Path(path), weights_only=True))
    else:
        vae.fit(maps)
    return vae.eval()
