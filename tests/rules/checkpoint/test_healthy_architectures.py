"""Ten architectures, trained for real and saved with everything: no finding above information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from stayfinite.checkpoint import verify

torch.set_num_threads(1)


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 2))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, 2),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x.repeat(1, 8).view(-1, 1, 8, 8)
        out: Tensor = self.head(F.relu(self.body(image)).mean((2, 3)))
        return out


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        out: Tensor = self.head(h)
        return out


class Transformer(nn.Module):
    """Learned positions, a causal mask as a buffer, tied input and output."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 16)
        self.positions = nn.Parameter(torch.zeros(8, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(
            self.layers(self.embed(x.unsqueeze(-1)) + self.positions, mask=self.mask).mean(1)
        )
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 12, 2, batch_first=True)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # this CPU has no bfloat16 LSTM
            hidden = self.cell(x.unsqueeze(-1))[0][:, -1]
        out: Tensor = self.head(hidden)
        return out


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 4, bias=False)
        self.decoder = nn.Linear(4, 8, bias=False)
        self.decoder.weight = nn.Parameter(self.encoder.weight.detach().t().clone())
        self.twin = nn.Linear(8, 4, bias=False)
        self.twin.weight = self.encoder.weight
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.decoder(torch.tanh(self.encoder(x) + self.twin(x))))
        return out


class ZeroInitialised(nn.Module):
    """Adapters whose last layer starts at zero, as in LoRA and adaLN-zero; a frozen backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(8, 16)
        self.backbone.requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(16, 4, bias=False) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(4, 16, bias=False) for _ in range(4))
        for layer in self.up:
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x)
        for down, up in zip(self.down, self.up, strict=True):
            h = h + up(down(h))
        out: Tensor = self.head(h)
        return out


class Mixture(nn.Module):
    """Experts of which some never get a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.experts[0](x) + self.experts[1](x))
        return out


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, padding_idx=0)
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table((x.abs() * 10).long().clamp(max=20)).flatten(1))
        return out


class GroupNormSpectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 16))
        self.norm = nn.GroupNorm(4, 16)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.silu(self.norm(self.first(x)))) * self.temperature
        return out


ARCHITECTURES: list[Callable[[], nn.Module]] = [
    Mlp, ConvNet, ResNet, Transformer, Recurrent, TiedAutoencoder, ZeroInitialised, Mixture, Embeddings,
    GroupNormSpectral,
]  # fmt: skip


@pytest.mark.parametrize("build", ARCHITECTURES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("recipe", ["adamw-onecycle", "sgd-cosine", "bf16"])
def test_a_healthy_checkpoint_has_no_finding(
    build: Callable[[], nn.Module], recipe: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = build()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    if recipe == "sgd-cosine":
        optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=60)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95)
    )
    for _ in range(50):
        x = torch.randn(32, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe == "bf16"):
            loss = F.cross_entropy(model(x).float(), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
    assert torch.isfinite(loss)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "ema": average.state_dict(),
        "step": 50,
        "loss": loss.item(),
    }
    torch.save(state, tmp_path / "full.pt")
    half = {
        name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in model.state_dict().items()
    }
    torch.save(half, tmp_path / "half.pt")
    torch.save(model.half().state_dict(), tmp_path / "fp16.pt")
    save_file(
        {name: t.clone().contiguous() for name, t in model.state_dict().items()}, tmp_path / "a.safetensors"
    )
    for name in ("full.pt", "half.pt", "fp16.pt", "a.safetensors"):
        findings = verify(tmp_path / name).findings
        assert [f for f in findings if f.severity.value != "info"] == [], name
    assert [f for f in verify(state).findings if f.severity.value != "info"] == []
