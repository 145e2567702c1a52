"""A traced training gives the numbers of a plain one, bit for bit: weights, averages, losses, evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stayfinite.replay import Tracer

STEPS = 3


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.groups = nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.first(x)))
        x = F.interpolate(x + self.groups(self.second(x)), scale_factor=2)
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


class StandardisedConvolution(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), unbiased=False, keepdim=True)
        return F.conv2d(x, (self.weight - mean) * (variance + 1e-5).rsqrt(), self.bias, padding=1)


class Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            StandardisedConvolution(3, 16, 3), nn.SiLU(), StandardisedConvolution(16, 16, 3)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens), src_key_padding_mask=tokens == 0).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(32, 5)
        self.cells = kind(16, 16, 2, batch_first=True, dropout=0.1, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cells(self.embed(tokens))[0].mean(1))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.GELU()), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        return gradient * factor, (gradient * x).sum()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 5)
        self.factor = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        y = Scale.apply(self.first(x), self.factor) * 1
        y += 1
        y[:, :3] = 0
        return self.head(y.mul_(0.5).relu_())


def images() -> Tensor:
    return torch.randn(8, 3, 12, 12)


def channels_last_images() -> Tensor:
    return images().contiguous(memory_format=torch.channels_last)


def tokens() -> Tensor:
    drawn = torch.randint(1, 50, (8, 11))
    drawn[:4, 8:] = 0
    return drawn


def vectors() -> Tensor:
    return torch.randn(8, 12)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], torch.dtype | None]] = {
    "convolutions": (Convolutions, images, None),
    "channels last": (Convolutions, channels_last_images, None),
    "channels last, float16": (Convolutions, channels_last_images, torch.float16),
    "standardised, float16": (Standardised, channels_last_images, torch.float16),
    "standardised, bfloat16": (Standardised, images, torch.bfloat16),
    "attention": (Attention, tokens, None),
    "attention, bfloat16": (Attention, tokens, torch.bfloat16),
    "attention, float16": (Attention, tokens, torch.float16),
    "gru": (partial(Recurrent, nn.GRU), tokens, None),
    "lstm": (partial(Recurrent, nn.LSTM), tokens, None),
    "checkpoint": (Checkpointed, vectors, None),
    "custom function, in place": (InPlace, vectors, None),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw, loop": partial(torch.optim.AdamW, lr=1e-2, foreach=False),
    "adamw, foreach": partial(torch.optim.AdamW, lr=1e-2, foreach=True),
    "adamw, fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "sgd, foreach": partial(torch.optim.SGD, lr=1e-2, momentum=0.9, foreach=True),
    "sgd, fused": partial(torch.optim.SGD, lr=1e-2, momentum=0.9, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
}


def train(
    make: Callable[[], nn.Module], draw: Callable[[], Tensor], amp: torch.dtype | None, optimizer: str
) -> dict[str, Tensor]:
    """Everything that a training leaves behind."""
    torch.manual_seed(3)
    model = make()
    if draw is channels_last_images:
        model.to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False)
    updates = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=amp is torch.float16)
    left: dict[str, Tensor] = {}
    for step in range(STEPS):
        x, y = draw(), torch.randint(0, 5, (8,))
        updates.zero_grad()
        with torch.autocast("cpu", dtype=amp or torch.bfloat16, enabled=amp is not None):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(updates)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(updates)
        scaler.update()
        with torch.no_grad():
            for kept, value in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(value, 0.1)
        left[f"loss {step}"] = loss.detach()
    with torch.no_grad():
        left["evaluation"] = model.eval()(draw())
    left |= {f"weight {name}": value for name, value in model.state_dict().items()}
    left |= {f"average {name}": value for name, value in average.state_dict().items()}
    left |= {f"gradient {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return left | {"random": torch.get_rng_state()}


def assert_same(model: str, optimizer: str) -> None:
    plain = train(*MODELS[model], optimizer)
    with Tracer() as tracer:
        traced = train(*MODELS[model], optimizer)
    assert not tracer.follower.trouble
    assert plain.keys() == traced.keys()
    assert [name for name in plain if not torch.equal(plain[name], traced[name])] == []
    assert [name for name in plain if plain[name].stride() != traced[name].stride()] == []


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_kind(model: str) -> None:
    assert_same(model, "adamw, foreach")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_of_every_kind(optimizer: str) -> None:
    assert_same("channels last", optimizer)
    assert_same("custom function, in place", optimizer)


def test_a_fast_path_is_given_back() -> None:
    asks = torch.overrides.has_torch_function
    with Tracer():
        assert torch.overrides.has_torch_function is not asks
    assert torch.overrides.has_torch_function is asks
