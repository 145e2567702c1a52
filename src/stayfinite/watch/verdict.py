"""The verdict on a step: its few numbers, collected on the device and brought to the host together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stayfinite.watch.host import Fetch, pack
from stayfinite.watch.losses import Loss


@dataclass(slots=True)
class StepVerdict:
    """What the host knows of one step. Numbers of several ranks are joined so that all of them decide alike."""

    loss: float | None  # the mean over ranks; None if no loss was seen
    components: dict[str, float]
    grad_norm: float
    scale: float | None  # the smallest of all ranks, NaN if one is
    update_ratio: float | None
    own_loss: float | None  # of this rank
    bad_rank: int | None = None  # None with one rank, or if gradients that were averaged do not tell which
    bad_loss: float | None = None  # the loss of that rank
    bad_components: list[str] = field(default_factory=list)  # of this rank
    observed: dict[str, tuple[float, float]] = field(default_factory=dict)  # (min, max) by name
    input_absmax: float | None = None  # of the batch; of a healthy step, from time to time and in a sample
    has_gradients: bool = True  # some rank has any
    settings_are_bad: bool = False  # of an optimizer, on some rank
    some_are_half: bool = False  # gradients of some rank are of a half precision
    vitals: list[float] = field(default_factory=list)  # of a sampled step, as they were packed

    @property
    def loss_is_finite(self) -> bool:
        return self.loss is None or math.isfinite(self.loss)

    @property
    def norm_is_finite(self) -> bool:
        return math.isfinite(self.grad_norm)

    @property
    def scale_is_finite(self) -> bool:
        return self.scale is None or math.isfinite(self.scale)


class Numbers:
    """The scalars of one step, still on the device.

    With several ranks each sends a row of the same few numbers, whatever it observes and however many losses it
    saw: rows of different lengths would not fit together. The rest stays with the rank.
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        norm: Tensor,
        scale: Tensor | None,
        update_ratio: Tensor | None,
        observed: Mapping[str, tuple[Tensor, Tensor]],
        gather: Callable[[Tensor], Tensor] | None,
        input_absmax: Tensor | None = None,
        marks: Marks | None = None,
        vitals: Tensor | None = None,
    ) -> None:
        self._fetch: Fetch | None = None
        self._vitals = vitals
        self._names = list(losses[0].components) if losses else []
        optional = {"scale": scale, "update_ratio": update_ratio, "input": input_absmax}
        self._extra = [name for name, value in optional.items() if value is not None]
        self._observed = list(observed)
        scalars = [norm, *(value for value in optional.values() if value is not None)]
        scalars.extend(end for pair in observed.values() for end in pair)
        self._head = len(scalars)
        for loss in losses:
            scalars.append(loss.total)
            scalars.extend(loss.components.get(name, loss.total) for name in self._names)
        self._own = pack(scalars)
        self._marks = marks or Marks()
        self._shared = (
            gather(_row(norm, update_ratio, losses, scale, self._marks)) if gather is not None else None
        )

    def bad(self) -> Tensor:
        """1.0 if the norm or a loss of any rank is not finite, decided on the device."""
        if self._shared is not None:
            finite = torch.isfinite(self._shared[:, [_NORM, _LOSS]]).all()
        else:
            losses = self._own[self._head :: 1 + len(self._names)]
            finite = torch.isfinite(self._own[0]) & torch.isfinite(losses).all()
        return (~finite).float()

    def send(self) -> None:
        """Start the transfer to the host: one, for all of it."""
        numbers = self._own
        if self._shared is not None:
            numbers = torch.cat([numbers.to(self._shared.dtype), self._shared.flatten()])
        if self._vitals is not None:
            numbers = torch.cat([numbers, self._vitals.to(numbers.device)])
        self._fetch = Fetch(numbers)

    def verdict(self) -> StepVerdict:
        """Wait for the numbers, if they have not arrived, and read them."""
        if self._fetch is None:
            self.send()
        assert self._fetch is not None
        numbers = self._fetch.read()
        end = len(numbers) - (len(self._vitals) if self._vitals is not None else 0)
        own, others, vitals = numbers[: len(self._own)], numbers[len(self._own) : end], numbers[end:]
        width = 1 + len(self._names)

        def mean(offset: int) -> float | None:
            values = own[self._head + offset :: width]
            return sum(values) / len(values) if values else None

        extra = {name: own[1 + i] for i, name in enumerate(self._extra)}
        ends = own[1 + len(self._extra) : self._head]
        components = {name: mean(1 + i) for i, name in enumerate(self._names)}
        known = {name: value for name, value in components.items() if value is not None}
        rows = [others[i : i + _WIDTH] for i in range(0, len(others), _WIDTH)]
        losses = [row[_LOSS] if row[_SEEN] else None for row in rows] or [mean(0)]
        marks = [Marks.of_number(row[_MARKS]) for row in rows] or [self._marks]
        norms = [row[_NORM] for row in rows] or [own[0]]
        if any(mark.is_part for mark in marks):  # gradients were averaged, then spread: no part tells a rank
            norms = [math.hypot(*norms) if all(map(math.isfinite, norms)) else _worst(norms)] * len(norms)
        seen = [loss for loss in losses if loss is not None]
        bad_rank = _first_bad_rank(
            [loss is None or math.isfinite(loss) for loss in losses], [math.isfinite(norm) for norm in norms]
        )

        def worst(name: str, column: int) -> float | None:
            return _worst([row[column] for row in rows] or [extra[name]]) if name in extra else None

        scales = [row[_SCALE] for row in rows if row[_SCALE] != 0.0]
        return StepVerdict(
            loss=sum(seen) / len(seen) if seen else None,
            components=known,
            grad_norm=_worst(norms),
            scale=_smallest(scales) if scales else extra.get("scale"),
            update_ratio=worst("update_ratio", _RATIO),
            own_loss=mean(0),
            bad_rank=bad_rank,
            bad_loss=losses[bad_rank] if bad_rank is not None else None,
            bad_components=[name for name, value in known.items() if not math.isfinite(value)],
            input_absmax=extra.get("input"),
            vitals=vitals,
            observed={name: (ends[2 * i], ends[2 * i + 1]) for i, name in enumerate(self._observed)},
            has_gradients=any(mark.has_gradients for mark in marks),
            settings_are_bad=any(mark.settings_are_bad for mark in marks),
            some_are_half=any(mark.is_half for mark in marks),
        )


@dataclass(frozen=True, slots=True)
class Marks:
    """What the host knows of a rank's step before its numbers are there; all ranks act on it."""

    has_gradients: bool = True
    settings_are_bad: bool = False
    is_half: bool = False
    is_part: bool = False  # its norm is that of the gradients which this rank holds

    def number(self) -> float:
        return float(self.has_gradients + 2 * self.settings_are_bad + 4 * self.is_half + 8 * self.is_part)

    @classmethod
    def of_number(cls, number: float) -> Marks:
        bits = int(number)
        return cls(bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8))


_NORM, _RATIO, _LOSS, _SEEN, _SCALE, _MARKS = range(6)
_WIDTH = 6


@torch.no_grad()
def _row(
    norm: Tensor, ratio: Tensor | None, losses: Sequence[Loss], scale: Tensor | None, marks: Marks
) -> Tensor:
    """What a rank tells the others: always six numbers (48 bytes), always of the same dtype; a scale of 0 is none."""
    dtype = torch.float32 if norm.device.type == "mps" else torch.float64  # mps knows no float64
    nothing = torch.zeros((), device=norm.device)
    totals = [loss.total.detach().to(norm.device, dtype) for loss in losses]
    loss = torch.stack(totals).mean() if totals else nothing
    seen, mark = (torch.full((), value, device=norm.device) for value in (float(len(losses)), marks.number()))
    parts = (norm, nothing if ratio is None else ratio, loss, seen, nothing if scale is None else scale, mark)
    return torch.stack([part.detach().to(norm.device, dtype) for part in parts])


def _first_bad_rank(good_losses: list[bool], good_norms: list[bool]) -> int | None:
    """The rank it came from: a bad loss tells; a bad norm only where the ranks have not averaged their gradients."""
    if len(good_losses) == 1:
        return None
    if not all(good_losses):
        return good_losses.index(False)
    return good_norms.index(False) if any(good_norms) and not all(good_norms) else None


def _worst(values: list[float]) -> float:
    """The largest, or a NaN if there is one (max would hide it)."""
    return next((value for value in values if math.isnan(value)), max(values))


def _smallest(values: list[float]) -> float:
    """The smallest, or one that is not finite if there is one."""
    return next((value for value in values if not math.isfinite(value)), min(values))
