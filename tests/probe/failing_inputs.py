"""Models that are healthy on their batch and fail for some input inside the range; each with its repaired twin.

The mechanisms are those of public reports: a log of a probability, a root of a negative number, an empty mask...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stayfinite.probe import Probe

Loss = Callable[[nn.Module, Any], Tensor]
WIDE = (-200.0, 200.0)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _made(model: nn.Module, batch: Any, loss: Loss, bounds: Any = None) -> Callable[[], Probe]:
    return lambda: Probe(model, batch, loss, range=bounds)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def _bce_half(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    with torch.autocast("cpu", dtype=torch.float16):
        p = torch.sigmoid(model(x))
        return -(y * torch.log(p + 1e-8) + (1 - y) * torch.log(1 - p + 1e-8)).mean()


def _bce_stable(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.binary_cross_entropy_with_logits(model(x).float(), y)


def _odds(safe: bool) -> Loss:
    def loss(model: nn.Module, logits: Tensor) -> Tensor:
        logp = torch.log_softmax(model(logits), -1)[..., 1].mean(-1)
        if safe:
            logp = logp.clamp(max=-1e-4)
        return -F.logsigmoid(logp + 2.0 - torch.log1p(-torch.exp(logp))).mean()

    return loss


def _variance(eps: float) -> Loss:
    return lambda model, x: F.relu(1 - (model(x).var(0, unbiased=False) + eps).sqrt()).mean()


def _power(floor: float) -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        gain = torch.sigmoid(model(x)).clamp_min(floor)
        return (0.7 - gain.pow(0.5)).pow(2).mean()

    return loss


def _sphere(safe: bool) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        origin, ray = batch["origin"], F.normalize(batch["ray"] + 0.01, dim=-1)
        along = -(ray * origin).sum(-1)
        point = origin + along[:, None] * ray
        inside = 1.0 - (point * point).sum(-1)
        depth = torch.sqrt(inside.clamp_min(1e-6) if safe else inside) + along
        return model(depth[:, None]).pow(2).mean()

    return loss


def _mish(safe: bool) -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        h = model(x)
        return (h * torch.tanh(F.softplus(h) if safe else torch.log(1 + torch.exp(h)))).mean()

    return loss


def _masked_mean(least: int) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, label = batch
        mask = (label != -100).float()
        scores = torch.log_softmax(model(x), -1).mean(-1)
        return -(scores * mask).sum() / mask.sum().clamp_min(least)

    return loss


def _advantage(safe: bool) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen, gain = batch
        if not safe or len(gain) > 1:
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        return -(torch.log_softmax(model(seen), 1)[:, 0] * gain).mean()

    return loss


def _attention(model: nn.Module, batch: Any) -> Tensor:
    x, padding = batch["x"], batch["padding"]
    out, _ = model(x, x, x, key_padding_mask=padding)
    return (out * (~padding)[..., None]).pow(2).mean()


def _attention_safe(model: nn.Module, batch: Any) -> Tensor:
    padding = batch["padding"] & ~batch["padding"].all(1, keepdim=True)
    return _attention(model, {"x": batch["x"], "padding": padding})


def _ctc(zero_infinity: bool) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        frames, labels = batch["frames"], batch["labels"]
        lp = torch.log_softmax(model(frames), -1)
        sizes = torch.full((labels.shape[0],), labels.shape[1])
        steps = torch.full((labels.shape[0],), frames.shape[0])
        return F.ctc_loss(lp, labels, steps, sizes, zero_infinity=zero_infinity)

    return loss


def _mixture(safe: bool) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        weight, mean, log_scale = model(x).chunk(3, 1)
        if safe:
            log_scale = log_scale.clamp(-5, 5)
        parts = -0.5 * ((y - mean) / log_scale.exp()) ** 2 - log_scale
        if safe:
            return -torch.logsumexp(torch.log_softmax(weight, 1) + parts.clamp_min(-1e4), 1).mean()
        return -torch.log((torch.softmax(weight, 1) * parts.exp()).sum(1)).mean()

    return loss


def _gaussian(floor: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        mean, raw = model(x).chunk(2, 1)
        variance = torch.sigmoid(raw) + floor
        return (0.5 * torch.log(variance) + 0.5 * (y - mean) ** 2 / variance).mean()

    return loss


def _action(edge: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        action = batch["action"].clamp(-edge, edge)
        raw = torch.atanh(action)
        return (model(batch["x"]) - raw).pow(2).mean() + torch.log(1 - action.pow(2)).mean()

    return loss


def _graph_softmax(safe: bool) -> Loss:
    index = torch.tensor([0, 0, 0, 1, 1, 1])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        e = model(x).squeeze(-1)
        if safe:
            e = e - e.detach().max().clamp_min(-1e6)
            e = e.clamp_min(-50)
        ex = e.exp()
        total = torch.zeros(2).index_add(0, index, ex)
        return (ex / (total[index] + 1e-16)).pow(2).sum()

    return loss


def _frequency(count: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, label = batch
        share = (torch.bincount(label, minlength=4).float() + count) / len(label)
        return (F.cross_entropy(model(x), label, reduction="none") * torch.log(1 / share)[label]).mean() + (
            torch.log(share).mean() * model.weight.pow(2).mean()
        )

    return loss


def _min_max(eps: float) -> Loss:
    def loss(model: nn.Module, image: Tensor) -> Tensor:
        low, high = image.amin((1, 2, 3), keepdim=True), image.amax((1, 2, 3), keepdim=True)
        return model((image - low) / (high - low + eps)).pow(2).mean()

    return loss


def _weighted(least: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        valid = batch["valid"]
        return (model(batch["x"]).squeeze(1).pow(2) * valid).sum() / valid.sum().clamp_min(least)

    return loss


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.proj = nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.proj(self.table(ids))


def _normalized(eps: float) -> Loss:
    return lambda model, ids: (F.normalize(model(ids), dim=-1, eps=eps) @ torch.arange(8.0)).sum()


def _scaled_feature(safe: bool) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        spread = batch["spread"]
        return model(batch["x"] / (spread.clamp_min(1e-3) if safe else spread)).pow(2).mean()

    return loss


def _angle(edge: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        a, b = F.normalize(model(batch["a"]), dim=-1), F.normalize(model(batch["b"]), dim=-1)
        return torch.acos((a * b).sum(-1).clamp(-edge, edge)).mean()

    return loss


def _distance(eps: float) -> Loss:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return ((model(batch["a"]) - model(batch["b"])).pow(2).sum(-1) + eps).sqrt().mean()

    return loss


def _half_sum(safe: bool) -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        total = x.float().mean(0) if safe else x.half().sum(0) / len(x)
        return model(total.float()[None]).pow(2).mean()

    return loss


_LABELS = torch.tensor([[1, 2, 3, 4, 5]])
_MIXED = torch.tensor([[3, -100, 2, 1], [-100, -100, 0, 2]])

Pair = tuple[Callable[[], Probe], Callable[[], Probe]]


def _pair(bad: Loss, good: Loss, model: nn.Module, batch: Any, bounds: Any = None) -> Pair:
    return _made(model, batch, bad, bounds), _made(model, batch, good, bounds)


CASES: dict[str, Pair] = {
    "log of a saturated sigmoid in float16": _pair(
        _bce_half, _bce_stable, _linear(16, 1), (_x(8, 16), (_x(8, 1) > 0).float()), {"0": (-60, 60), "1": (0, 1)}
    ),
    "log1p of minus exp": _pair(_odds(False), _odds(True), _linear(5, 5), _x(2, 3, 5), WIDE),
    "root of a variance": _pair(_variance(0), _variance(1e-4), _linear(4, 6), _x(8, 4), (-3, 3)),
    "power of a saturated sigmoid": _pair(_power(0), _power(1e-4), _linear(8, 12), _x(6, 8), (-600, 600)),
    "root outside the sphere": _pair(
        _sphere(False), _sphere(True), _linear(1, 3), {"origin": 0.2 * _x(4, 3), "ray": _x(4, 3)}, (-3, 3)
    ),
    "mish by hand": _pair(_mish(False), _mish(True), _linear(4, 4), _x(4, 4), WIDE),
    "masked mean without tokens": _pair(_masked_mean(0), _masked_mean(1), _linear(3, 5), (_x(2, 4, 3), _MIXED)),
    "deviation of one sample": _pair(_advantage(False), _advantage(True), _linear(4, 2), (_x(5, 4), _x(5))),
    "all keys are padding": _pair(
        _attention, _attention_safe, nn.MultiheadAttention(8, 2, batch_first=True),
        {"x": _x(2, 5, 8), "padding": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}, (-3, 3),
    ),
    "ctc with repeated labels": _pair(
        _ctc(False), _ctc(True), _linear(4, 8), {"frames": _x(5, 1, 4), "labels": _LABELS}, (-3, 3)
    ),
    "mixture likelihood underflows": _pair(
        _mixture(False), _mixture(True), _linear(1, 9), (_x(8, 1), _x(8, 1)), (-60, 60)
    ),
    "variance collapses": _pair(_gaussian(0), _gaussian(1e-4), _linear(2, 2), (_x(8, 2), _x(8, 1)), WIDE),
    "action at the bound": _pair(
        _action(1.0), _action(0.999), _linear(3, 1), {"x": _x(6, 3), "action": 0.5 * torch.tanh(_x(6, 1))},
        {"x": (-3, 3), "action": (-1, 1)},
    ),
    "exp without its maximum": _pair(_graph_softmax(False), _graph_softmax(True), _linear(3, 1), _x(6, 3), WIDE),
    "a class that is missing": _pair(
        _frequency(0), _frequency(1), _linear(3, 4), (_x(8, 3), torch.arange(8) % 4), (-3, 3)
    ),
    "a constant image": _pair(_min_max(0), _min_max(1e-3), nn.Conv2d(3, 2, 3), _x(2, 3, 6, 6).abs(), (0, 1)),
    "no valid targets": _pair(
        _weighted(0), _weighted(1), _linear(4, 1), {"x": _x(6, 4), "valid": torch.tensor([1.0, 1, 0, 1, 1, 0])}, (-3, 3)
    ),
    "padding is normalised": _pair(
        _normalized(1e-12), _normalized(1e-3), _Padded(), torch.tensor([[1, 2, 3], [4, 5, 9]])
    ),
    "a spread of zero": _pair(
        _scaled_feature(False), _scaled_feature(True), _linear(4, 2), {"x": _x(3, 4), "spread": _x(3, 4).abs() + 0.5},
        {"x": (-3, 3), "spread": (0, 5)},
    ),
    "angle of equal vectors": _pair(
        _angle(1.0), _angle(0.999), _linear(4, 4), {"a": _x(4, 4), "b": _x(4, 4) * torch.tensor([1, -1, 2, 0.5])},
        (-3, 3),
    ),
    "distance of equal points": _pair(
        _distance(0), _distance(1e-4), _linear(3, 3), {"a": _x(4, 3), "b": _x(4, 3).flip(0)}, (-3, 3)
    ),
    "sum in float16": _pair(_half_sum(False), _half_sum(True), _linear(4, 2), 10 * _x(64, 4), (-3000, 3000)),
}  # fmt: skip
