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
class Verdict:
    """What the host knows of one step. Numbers of several ranks are joined so that all of them decide alike."""

    loss: float | None  # the mean over ranks; None if no loss was seen
    components: dict[str, float]
    grad_norm: float
    scale: float | None
    update_ratio: float | None
    state_peak: float | None
    own_loss: float | None  # of this rank
    bad_rank: int | None = None  # None with one rank, or if gradients that were averaged do not tell which
    bad_loss: float | None = None  # the loss of that rank
    bad_components: list[str] = field(default_factory=list)
    observed: dict[str, tuple[float, float]] = field(default_factory=dict)  # (min, max) by name

    @property
    def loss_is_finite(self) -> bool:
        return self.loss is None or math.isfinite(self.loss)

    @property
    def norm_is_finite(self) -> bool:
        return math.isfinite(self.grad_norm)

    @property
    def state_is_finite(self) -> bool:
        return self.state_peak is None or math.isfinite(self.state_peak)


class Numbers:
    """The scalars of one step, still on the device."""

    def __init__(
        self,
        losses: Sequence[Loss],
        norm: Tensor,
        scale: Tensor | None,
        update_ratio: Tensor | None,
        state_peak: Tensor | None,
        observed: Mapping[str, tuple[Tensor, Tensor]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        self._fetch: Fetch | None = None
        self._names = list(losses[0].components) if losses else []
        optional = {"scale": scale, "update_ratio": update_ratio, "state_peak": state_peak}
        self._extra = [name for name, value in optional.items() if value is not None]
        self._observed = list(observed)
        scalars = [norm, *(value for value in optional.values() if value is not None)]
        scalars.extend(end for pair in observed.values() for end in pair)
        self._head = len(scalars)
        for loss in losses:
            scalars.append(loss.total)
            scalars.extend(loss.components.get(name, loss.total) for name in self._names)
        self._table = gather(pack(scalars))

    def bad(self) -> Tensor:
        """1.0 if the norm or a loss of any rank is not finite, decided on the device."""
        losses = self._table[:, self._head :: 1 + len(self._names)]
        finite = torch.isfinite(self._table[:, 0]).all() & torch.isfinite(losses).all()
        return (~finite).float()

    def send(self) -> None:
        """Start the transfer to the host."""
        self._fetch = Fetch(self._table)

    def verdict(self, rank: int) -> Verdict:
        """Wait for the numbers, if they have not arrived, and read them."""
        if self._fetch is None:
            self.send()
        assert self._fetch is not None
        rows = self._fetch.read()
        width = 1 + len(self._names)

        def mean(row: list[float], offset: int) -> float | None:
            values = row[self._head + offset :: width]
            return sum(values) / len(values) if values else None

        def is_good(value: float | None) -> bool:
            return value is None or math.isfinite(value)

        losses = [mean(row, 0) for row in rows]
        seen = [loss for loss in losses if loss is not None]
        bad_rank = _first_bad_rank(
            [is_good(loss) for loss in losses], [math.isfinite(row[0]) for row in rows]
        )
        extra = {name: [row[1 + i] for row in rows] for i, name in enumerate(self._extra)}
        ends = rows[rank][1 + len(self._extra) : self._head]
        components = {name: mean(rows[rank], 1 + i) for i, name in enumerate(self._names)}
        return Verdict(
            loss=sum(seen) / len(seen) if seen else None,
            components={name: value for name, value in components.items() if value is not None},
            grad_norm=_worst([row[0] for row in rows]),
            scale=extra["scale"][rank] if "scale" in extra else None,
            update_ratio=_worst(extra["update_ratio"]) if "update_ratio" in extra else None,
            state_peak=_worst(extra["state_peak"]) if "state_peak" in extra else None,
            own_loss=losses[rank],
            bad_rank=bad_rank,
            bad_loss=losses[bad_rank] if bad_rank is not None else None,
            bad_components=[
                name
                for i, name in enumerate(self._names)
                if not all(is_good(mean(row, 1 + i)) for row in rows)
            ],
            observed={name: (ends[2 * i], ends[2 * i + 1]) for i, name in enumerate(self._observed)},
        )


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
