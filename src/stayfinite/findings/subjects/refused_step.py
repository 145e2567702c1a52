"""RefusedStep: what the guard itself sees of a step it refused, before any replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from stayfinite.findings.incident import TensorSummary


@dataclass(frozen=True, slots=True)
class SpikeFacts:
    """One quantity that jumped."""

    quantity: str  # "loss", "gradient norm", "update"
    value: float
    typical: float
    deviations: float


@dataclass(frozen=True, slots=True)
class RefusedStep:
    """A step that was not applied: what of it was not finite, by kind."""

    step: int
    trigger: str  # loss, gradient, parameter, spike
    loss: float | None
    grad_norm: float | None
    components: dict[str, float] = field(default_factory=dict)
    batch: tuple[TensorSummary, ...] = ()  # tensors of the batch that hold NaN or Inf
    gradients: tuple[str, ...] = ()  # parameters whose gradient holds NaN or Inf
    norm_overflowed: bool = False  # every gradient is finite, their norm is not
    parameters: tuple[TensorSummary, ...] = ()
    buffers: tuple[TensorSummary, ...] = ()
    moments: tuple[TensorSummary, ...] = ()
    averages: tuple[TensorSummary, ...] = ()
    bad_update: bool = False  # gradients were finite, the update made parameters or moments bad
    settings: tuple[
        str, ...
    ] = ()  # learning rates and the like that are not finite, as "lr of group 0 of SGD is nan"
    scale: float | None = None
    scale_floor: float | None = None
    spikes: tuple[SpikeFacts, ...] = ()
    observed: tuple[TensorSummary, ...] = ()  # what the user asked to keep an eye on
    rank: int | None = None  # the first rank that saw it, if there are several
