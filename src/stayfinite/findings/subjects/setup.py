"""Setup: what a training run starts from. Examined once, before the first step and after it."""

from __future__ import annotations

from dataclasses import dataclass

from stayfinite.findings.incident import TensorSummary


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A parameter or buffer that looks wrong: not finite, or of absurd size."""

    kind: str  # "parameter", "buffer", "ema", "optimizer"
    summary: TensorSummary
    absurd: int = 0  # elements beyond 1e30 that are no mask value
    loaded: bool = False  # it is so in the state that was loaded


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group of an optimizer."""

    index: int
    lr: float
    eps: float | None  # None for optimizers without one
    dtypes: tuple[str, ...]  # of its parameters: "float16", "float32", ...


@dataclass(frozen=True, slots=True)
class OptimizerSetup:
    """One optimizer. `adaptive`: divides by a running size of the gradient (Adam, RMSprop, Adagrad...)."""

    name: str
    adaptive: bool
    keeps_master: bool  # it is known to keep a float32 copy of half parameters
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts the audit at the start decides from."""

    tensors: tuple[HeldTensor, ...] = ()
    optimizers: tuple[OptimizerSetup, ...] = ()
    unheld: tuple[str, ...] = ()  # trainable parameters that no optimizer holds
    scaler: bool = False
    forward_seen: bool = False  # the first forward pass has been watched, so `autocast` is known
    autocast: str | None = None  # the dtype autocast used in it
