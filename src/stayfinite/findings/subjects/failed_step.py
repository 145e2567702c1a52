"""FailedStep: the evidence about one failing step, or about a run that fails silently. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from stayfinite.findings.incident import PathStep, TensorSummary
from stayfinite.findings.subjects.run_record import (
    AverageFacts,
    ClipCall,
    Comparison,
    FileLoad,
    GradientFacts,
    LoadEvent,
    OptimizerFacts,
    Place,
    ReplicaFacts,
    Resume,
    RoundedIntegers,
    ScalerFacts,
    SchedulerFacts,
    StateTensor,
    StepRecord,
    TargetFacts,
    UpdateAudit,
)
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that the step raised."""

    kind: str  # "IndexError"
    text: str
    place: Place
    caught: bool = False  # the script caught it and went on


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the bad value arrived: the loss, a gradient, a parameter, or a result that nothing reads."""

    kind: str  # "loss", "gradient", "parameter", "buffer", "state", "result", "exception"
    name: str | None
    summary: TensorSummary | None = None


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
    - Without a birth the failure is of the run: look at history, updates, loads, schedulers, scalers, clips,
      state. Such a step has phase "state" or "optimizer", and `complete` is True: the whole run was seen.
      Rules must be silent on it unless their own evidence is there: every healthy run is examined this way
      once, at its end.
    - Findings point to a line: use `birth.birth.file/line`, or `place.file/line` of the record that is wrong.
    - `handled`: the script itself kept the bad value out of the weights and went on. Yield as usual:
      findings of a handled step are lowered to information by whoever builds the incident.
    """

    step: int
    phase: str  # forward, backward, optimizer, data, state
    trigger: str  # loss, gradient, parameter, spike, exception
    births: tuple[TracedBirth, ...] = ()
    sink: Sink | None = None
    path: tuple[PathStep, ...] = ()  # from births[0] to the sink
    benign: tuple[TracedBirth, ...] = ()  # bad values that did not reach the sink, without saved/float32
    failure: Failure | None = None
    reproduced: bool | None = True  # None: no replay came to this step
    handled: bool = False
    complete: bool = False  # the run is over: silent failures may be judged
    history: tuple[StepRecord, ...] = ()  # the last steps, oldest first, at most 64; the failing one is last
    first_steps: tuple[StepRecord, ...] = ()  # the first 16 steps of the run
    batch: tuple[Operand, ...] = ()  # tensors the DataLoader handed out for this step
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
    state: tuple[StateTensor, ...] = ()  # non-finite parameters, buffers, moments, averages found now
    comparisons: tuple[Comparison, ...] = ()
    gradients: tuple[GradientFacts, ...] = ()
    autocast: str | None = None  # the dtype autocast used in this step
    world_size: int = 1
    replicas: tuple[
        ReplicaFacts, ...
    ] = ()  # copies of one model that should stay equal, when more than one is seen
    rounded: tuple[RoundedIntegers, ...] = ()  # arange and the like in a half dtype that lost whole numbers

    @property
    def birth(self) -> TracedBirth | None:
        """The most causal birth."""
        return self.births[0] if self.births else None
