"""RunRecord: what a run did up to a point: steps, optimizers, scalers, schedulers, clips, loads. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stayfinite.findings.subjects.setup import HeldTensor


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's script."""

    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the history; None where it was not seen. Steps count optimizer steps from 0."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None  # before clipping, unscaled where a GradScaler is used
    lr: float | None = None
    scale: float | None = None  # the loss scale
    update_ratio: float | None = None  # norm of the update / norm of the weights
    input_absmax: float | None = None  # largest magnitude in the batch
    applied: bool = True  # False when a GradScaler or a guard skipped it
    who: tuple[int, ...] = ()  # the numbers of the optimizers that made it, where a run has several
    rate: float | None = None  # the largest of theirs; `lr` is that of the run's first group
    stepped: Place = Place()  # the line of their step()

    @property
    def own_rate(self) -> float | None:
        """The learning rate that this update was made with."""
        return self.rate if self.rate is not None else self.lr


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer, as its param groups say."""

    kind: str  # "AdamW"
    lr: float
    eps: float | None
    eps_in_dtype: float | None  # the eps as the dtype of the state holds it: 0.0 for 1e-8 in float16
    param_dtypes: tuple[str, ...]
    state_dtypes: tuple[str, ...]
    steps: int  # how often it stepped
    created: Place = Place()
    stepped: Place = Place()  # the line of the last step()
    momentum: float = 0.0  # the largest of its groups
    # of the group where their product is largest, if the weights themselves are multiplied by 1 - rate * decay
    shrinking: tuple[float, float] | None = None  # learning rate, weight decay


@dataclass(frozen=True, slots=True)
class UpdateAudit:
    """What a step changed in the low-precision parameters of one optimizer (audited on some steps)."""

    dtype: str
    elements: int  # with a non-zero gradient
    unchanged: int  # of these, bit for bit the same after the step
    audited_steps: int = 1  # steps audited up to now
    frozen_steps: int = 0  # of these, steps in which nothing at all changed
    place: Place = Place()  # the line of the step


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """A GradScaler over its life."""

    init_scale: float
    scale: float  # now
    loaded: bool  # load_state_dict was called on it
    steps: int
    skipped: int  # steps refused because of non-finite gradients
    skipped_first: int  # of the first ten steps
    streak: int  # refused in a row, up to now
    forward_bad: int  # of the skipped steps, those whose loss itself was not finite
    scheduler_stepped_on_skip: int
    created: Place = Place()
    earlier_scale: float | None = None  # the scale of an older scaler of this run when this one was made
    # steps of an optimizer itself, not through the scaler, on gradients that were still scaled
    bypassed: int = 0
    stepped_again: int = 0  # steps of an optimizer itself right after the scaler's, on the same gradients
    unchecked: int = (
        0  # steps of an optimizer itself after the script's unscale_, which the scaler could not refuse
    )
    # gradients of a scaled loss that went into another loss, by a script that never read the scale
    penalties: int = 0
    penalty: Place = Place()
    unscaled_losses: int = (
        0  # updates through the scaler, of a loss that it had not scaled (unless its scale is read)
    )
    unscaled_loss: Place = Place()  # where that loss went backward


@dataclass(frozen=True, slots=True)
class ClipCall:
    """Calls of clip_grad_norm_ (or clip_grad_value_) at one line."""

    place: Place
    max_norm: float | None = None
    calls: int = 0
    norm: float | None = None  # the last norm it saw, before clipping
    nonfinite_norms: int = 0
    first_bad: int | None = None  # the first step whose norm was not finite
    mixed: bool = False  # some gradients finite, some not, when the norm was not finite
    scaled: bool = False  # the gradients still held a loss scale (clip before unscale_)
    scale: float | None = None
    error_if_nonfinite: bool = False
    raised: bool = False


@dataclass(frozen=True, slots=True)
class RateChange:
    """A rate that a scheduler set, when it was made or by its steps, before the optimizer stepped again."""

    kind: str  # "LambdaLR"
    how: str  # "made" or "stepped"
    rate: float  # what it was afterwards
    calls: int  # calls that changed it
    place: Place  # the last of them


Sizes: TypeAlias = tuple[tuple[str, float], ...]  # by name


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """load_state_dict of a model, optimizer, scheduler or scaler."""

    kind: str  # "module", "optimizer", "scheduler", "scaler"
    place: Place
    step: int
    lr_before: float | None = None  # what the script had asked for
    lr_after: float | None = None  # what the state brought
    lr_used: float | None = None  # what the next step (or the end of the script) really had
    # initial_lr of the first group, or base_lrs[0] of a scheduler, as configured
    base_before: float | None = None
    base_after: float | None = None  # the same after the load: differs when the file brought an old peak rate
    nonfinite: tuple[str, ...] = ()  # tensors of the file that are not finite
    enormous: Sizes = ()  # weights of the file beyond 1e15, with their largest magnitude
    negative: Sizes = ()  # running variances of the file below -eps, second moments below 0, with the lowest value
    moments_missing: bool = False  # an optimizer state without moments though steps were taken
    squares_lost: float = 0.0  # its second moments are 0 throughout though first ones reach so far
    mid_schedule: bool = False  # an optimizer state that a schedule had brought to this rate, after steps
    rescheduled: RateChange | None = None  # what schedulers did to lr_after before it was used


@dataclass(frozen=True, slots=True)
class FileLoad:
    """A call of torch.load that read its file, or found it damaged."""

    place: Place
    file: str
    step: int
    damage: str | None = None  # why it is no whole checkpoint


@dataclass(frozen=True, slots=True)
class Resume:
    """The first step of a new optimizer after weights were loaded, and the save they come from, if it was seen."""

    optimizer: str  # "AdamW"
    step: int
    saved: Place = Place()  # the torch.save, when this run made it
    loaded: Place = Place()  # the torch.load, or else the load of the scheduler
    saved_optimizer: bool = False  # the file holds an optimizer state
    optimizer_loaded: bool = False  # load_state_dict was called on the optimizer
    has_moments: bool = False  # it had state when it first stepped
    adaptive: bool = False  # it is one of the Adam family
    scheduler_epoch: int | None = None  # where the loaded scheduler was
    rate_saved: float | None = None  # of the optimizer of the same kind and shapes that was trained before
    rate_used: float | None = None
    before: tuple[float, ...] = ()  # its last losses before the save
    went_on: tuple[float, ...] = ()  # its next losses, when training went on after the save
    # the first losses of the new one; the very first is that of the loaded weights
    after: tuple[float, ...] = ()

    def with_losses(self, went_on: Sequence[float], after: Sequence[float]) -> Resume:
        return replace(self, went_on=tuple(went_on), after=tuple(after))


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """A learning-rate scheduler and the rates it set."""

    kind: str  # "LambdaLR"
    start_epoch: int  # last_epoch when it was made: > 0 means it resumes
    steps: int
    lrs: tuple[float, ...]  # the rate after each step, thinned to at most 64
    rising: bool  # the rate rose at every step seen
    rose_after_fall: bool  # fell (or started low on resume), then rose for good, without a restart schedule
    total_steps: int | None = None  # of OneCycleLR and CosineAnnealingLR
    created: Place = Place()
    stepped: Place = Place()
    updates: int = 0  # steps of its optimizer since it was made
    peak: float | None = None  # the largest rate of any param group
    gone: int = 0  # steps after which every group's rate was below 1e-5 of the peak
    base: float | None = None  # the learning rate it was given


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of the training state that is not finite (or never was written)."""

    owner: str  # "parameter", "buffer", "optimizer state", "average" (EMA, teacher), "gradient"
    name: str  # "bn.running_mean", "head.weight.exp_avg_sq"
    nan: int
    inf: int
    numel: int
    place: Place = Place()  # the line that wrote it, when traced
    dtype: str = ""
    before: bool = False  # it was so before the update that was refused


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What one line gave to a loss that does not check its targets."""

    place: Place
    calls: int  # looked at
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AverageFacts:
    """A copy of a module in half precision, in a sample of its values."""

    dtype: str
    writes: int  # how often it was changed in place
    values: int  # looked at
    still: int  # of them, bit for bit as when the copy was made
    source_moved: int  # of them, moved in the module it was copied from
    made: Place = Place()
    away: int = 0  # of them, far from what is trained (half of their size), in tensors often written to
    stuck: int = 0  # of these, bit for bit as when the copy was made


@dataclass(frozen=True, slots=True)
class Comparison:
    """A bad number that the script compared: `loss > 100` is False for NaN."""

    op: str  # "gt"
    place: Place
    result: bool
    value: float  # the bad number
    threshold: float | None


@dataclass(frozen=True, slots=True)
class GradientFacts:
    """Gradients after the last backward pass."""

    zero: bool  # exactly zero throughout
    missing: bool  # requires grad, is in an optimizer, has no gradient


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """One copy of a replicated model: a rank of a process group, or a copy inside one script."""

    rank: int
    scale: float | None = None  # its loss scale, or the divisor by which it unscaled
    skipped: int = 0  # refused updates
    started_equal: bool = True  # its weights were bit for bit those of replica 0 when training began
    equal: bool = True  # they still are
    drift: float | None = None  # largest difference from replica 0
    place: Place = Place()  # the line of its update


@dataclass(frozen=True, slots=True)
class RoundedIntegers:
    """Whole numbers (positions, time steps, indices) that a half dtype cannot tell apart."""

    place: Place
    dtype: str
    largest: float
    numel: int
    distinct: int  # different values left after rounding


@dataclass(frozen=True, slots=True)
class SpikeFacts:
    """One quantity that jumped."""

    quantity: str  # "loss", "gradient norm", "update"
    value: float
    typical: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that the observers of a run know at one moment."""

    history: tuple[StepRecord, ...] = ()  # the last steps, oldest first, at most 64; the failing one is last
    first_steps: tuple[StepRecord, ...] = ()  # the first 16 steps of the run
    complete: bool = False  # the run is over: silent failures may be judged
    optimizers: tuple[OptimizerFacts, ...] = ()
    updates: tuple[UpdateAudit, ...] = ()
    scalers: tuple[ScalerFacts, ...] = ()
    clips: tuple[ClipCall, ...] = ()
    loads: tuple[LoadEvent, ...] = ()
    file_loads: tuple[FileLoad, ...] = ()  # calls of torch.load, oldest first
    resumes: tuple[Resume, ...] = ()  # optimizers whose first step was made with loaded weights
    schedulers: tuple[SchedulerFacts, ...] = ()
    targets: tuple[TargetFacts, ...] = ()
    averages: tuple[AverageFacts, ...] = ()
    # copies of one model that should stay equal, when there are several
    replicas: tuple[ReplicaFacts, ...] = ()
    rounded: tuple[RoundedIntegers, ...] = ()  # arange and the like in a half dtype that lost whole numbers
    began: tuple[HeldTensor, ...] = ()  # what looked wrong before the first step, and was not loaded so
