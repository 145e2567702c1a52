"""FailedStep: the evidence about one failing step, within the run it belongs to. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stayfinite.findings.incident import PathStep, TensorSummary
from stayfinite.findings.mechanism.kind import Judged
from stayfinite.findings.subjects.growth import Growth
from stayfinite.findings.subjects.run_record import (
    Comparison,
    GradientFacts,
    Place,
    RunRecord,
    SpikeFacts,
    StateTensor,
)
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that the step raised."""

    kind: str  # "IndexError"
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the bad value arrived: the loss, a gradient, a parameter, or a result that nothing reads."""

    kind: str  # "loss", "gradient", "parameter", "buffer", "state", "result", "exception"
    name: str | None
    summary: TensorSummary | None = None


@dataclass(frozen=True, slots=True)
class LargestWeight:
    """The parameter with the largest magnitude of all, and the line that wrote it last."""

    name: str
    magnitude: float
    written: Place


@dataclass(frozen=True, slots=True)
class FailedStep:
    """What a rule decides from: `class LogOfZero(Rule[FailedStep])`, `check(step) -> Iterator[Finding]`.

    How to read it
    - `step.birth` is the most causal birth (births[0]) or None. `births` holds every birth that reached the
      sink, most causal first: a finite->inf at `exp` comes before the inf->nan at the division that follows.
      A deliberate -inf (a mask) never comes first when a later op made the NaN of it.
    - A birth tells op ("log"), transition ("finite->inf"), operands with ranges, counts of zeros and
      negatives, their origin and upstream ops; `facts` are measured per op (see TracedBirth).
    - phase "backward": `birth.birth.file/line` is the line of the *forward* op; `birth.node` names the
      autograd node, `forward_name` the forward op, `saved` what it saved (for sqrt: `result` with its zeros).
    - `judged` holds the births that are causes, each with its mechanism (`Kind.LOG_OF_ZERO`), classified once.
    - `run` is what the run did up to here: history, optimizers, scalers, schedulers, loads, clips.
    - Without a birth the failure is of the run. Such a step has phase "state" or "optimizer"; with `run.complete` the
      whole run was seen. Rules must be silent on it unless their own evidence is there: every healthy run is examined
      this way once, at its end.
    - Findings point to a line: use `birth.birth.file/line`, or `place.file/line` of the record that is wrong.
    - `handled`: the script itself kept the bad value out of the weights and went on. Yield as usual:
      findings of a handled step are lowered to information by whoever builds the incident.
    """

    step: int
    phase: str  # forward, backward, optimizer, data, state
    trigger: str  # loss, gradient, parameter, spike, exception
    run: RunRecord = field(default_factory=RunRecord)
    births: tuple[TracedBirth, ...] = ()
    # those of them that are causes, each with its mechanism; filled in by `explain`
    judged: tuple[Judged, ...] = ()
    sink: Sink | None = None
    path: tuple[PathStep, ...] = ()  # from births[0] to the sink
    # "log", "ratio" (Inf / Inf): what no way from an Inf of births[0] to the sink avoids
    narrows: tuple[str, ...] = ()
    benign: tuple[TracedBirth, ...] = ()  # bad values that did not reach the sink, without saved/float32
    failure: Failure | None = None
    # False: a replay ran to this very step and was finite. None: none came to it
    reproduced: bool | None = True
    handled: bool = False
    batch: tuple[Operand, ...] = ()  # tensors of the batch
    usual_size: int | None = None  # samples in the other batches, where this one holds a single one
    state: tuple[StateTensor, ...] = ()  # non-finite parameters, buffers, moments, averages found now
    comparisons: tuple[Comparison, ...] = ()
    growth: Growth | None = None  # how the values that overflowed became so large
    gradients: tuple[GradientFacts, ...] = ()
    # What a guard sees of a step that it refuses, before any replay.
    loss: float | None = None
    grad_norm: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)  # parts of the loss that are not finite
    bad_gradients: tuple[str, ...] = ()  # parameters whose gradient holds NaN or Inf
    norm_overflowed: bool = False  # every gradient is finite, their norm is not
    largest_gradient: tuple[str, float] | None = None  # of such a step: the parameter, the largest magnitude
    batch_absmax: float | None = None  # of such a step: the largest magnitude in the batch
    largest_weight: LargestWeight | None = None  # of a run that an error of python's arithmetic has ended
    # of the optimizer, that are not finite: "the learning rate of group 0 of SGD is nan"
    settings: tuple[str, ...] = ()
    asked: Place = field(
        default_factory=Place
    )  # of a step that a guard refused: the line that asked for its update
    bad_update: bool = False  # gradients were finite, the update made parameters or moments bad
    scale: float | None = None  # the loss scale after this step
    scale_floor: float | None = None
    spikes: tuple[SpikeFacts, ...] = ()
    observed: tuple[TensorSummary, ...] = ()  # what the user asked to keep an eye on
    rank: int | None = None  # the first rank that saw it, if there are several

    @property
    def birth(self) -> TracedBirth | None:
        """The most causal birth."""
        return self.births[0] if self.births else None
