"""Suspicion: a bad value that reached something that matters, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from stayfinite.findings.subjects.failed_step import FailedStep

_WEAK = ("spike", "result")


@dataclass(slots=True)
class Suspicion:
    """One possible failure. Repeats of the same birth are counted, not listed."""

    kind: str  # loss, gradient, parameter, buffer, result, exception, spike
    step: int
    evidence: FailedStep | None  # None: it happened while nothing was traced
    touched_state: bool = False  # it is in the weights, buffers or averages
    expected: bool = False  # a scaled gradient that the GradScaler skips
    caught: bool = False  # an exception that the script caught
    progress: bool = False  # afterwards the same went well, or training went on
    seconds: float = 0.0  # since the run began
    count: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two suspicions the same failure: the line of the birth. An op and its backward share it."""
        birth = self.evidence.birth if self.evidence is not None else None
        if birth is None:
            return ("no birth", self.evidence is None)
        where = (birth.birth.file, birth.birth.line)
        return where if birth.birth.line else (*where, birth.birth.op)

    @property
    def comes_from_outside(self) -> bool:
        """The one step that was followed was given the bad value: by its batch, or by its weights."""
        birth = self.evidence.birth if self.evidence is not None else None
        return birth is not None and birth.transition == "outside"

    def shares_a_birth(self, other: Suspicion) -> bool:
        """In the same step, a bad value of the one is among those that made the other."""
        if self.evidence is None or other.evidence is None or self.step != other.step:
            return False
        ours = {(b.birth.file, b.birth.line, b.birth.op) for b in self.evidence.births}
        return any((b.birth.file, b.birth.line, b.birth.op) in ours for b in other.evidence.births)

    def again(self, *, touched: bool) -> None:
        """The same bad value was met once more."""
        self.count += 1
        self.touched_state |= touched
        self.expected &= not touched
        self.progress = False


class Suspicions:
    """All suspicions of a run in the order they came."""

    def __init__(self) -> None:
        self.all: list[Suspicion] = []

    def add(self, new: Suspicion) -> Suspicion:
        """Remember one; a repeat of a known failure makes that one worse instead."""
        for known in self.all:
            if known.key == new.key or known.shares_a_birth(new):
                known.count += 1
                if known.evidence is None and new.evidence is None and new.step < known.step:
                    # A refusal is told when its body is over: what was read of it before that counts as later.
                    known.step, known.seconds = new.step, new.seconds
                dealt_with = known.progress and not new.expected
                if not known.touched_state and (dealt_with or (known.expected and new.expected)):
                    # The script, or its scaler, dealt with the earlier one; this one is what counts.
                    known.step, known.seconds, known.evidence = new.step, new.seconds, new.evidence
                known.touched_state |= new.touched_state
                if known.kind in _WEAK and new.kind not in _WEAK and new.evidence is not None:
                    # What was only enormous, or a result that nothing used, has become a failure.
                    known.step, known.seconds, known.evidence = new.step, new.seconds, new.evidence
                if known.kind in ("spike", "result", "exception") and new.kind not in ("spike", "result"):
                    known.kind = new.kind
                known.expected &= new.expected
                known.progress = new.progress if not new.expected else known.progress
                return known
        self.all.append(new)
        return new

    def went_on(self) -> None:
        """A healthy step was applied: what came before did not stop the run."""
        for known in self.all:
            known.progress = True

    def stepped_on(self, step: int, *, whatever_the_scale: bool = False) -> None:
        """The script asked for an update although this step's loss or gradient was bad: it did not handle it."""
        for known in self.all:
            if known.step == step and known.kind in ("loss", "gradient"):
                known.touched_state = True
                known.expected &= not whatever_the_scale

    def goes_on(self, kind: str, step: int) -> bool:
        """A step is refused for what was located before, and no healthy update came between: nobody looked again."""
        located = [s for s in self.all if s.kind == kind and s.evidence is not None and not s.progress]
        if not located:
            return False
        located[-1].again(touched=True)
        self.all = [s for s in self.all if s.step != step or s.evidence is not None]
        return True

    def outlasts(self, step: int | None = None) -> bool:
        """What was bad in this step (in any step) is still in buffers or averages; False if nothing was seen."""
        seen = [known for known in self.all if not known.expected and (step is None or known.step == step)]
        for known in seen[:1]:
            known.touched_state = True
        return bool(seen)

    def of_step(self, step: int) -> bool:
        """Something was seen in this step."""
        return any(known.step == step for known in self.all)

    def raised_in(self, step: int) -> bool:
        """An error ended this step, and what led to it is located."""
        return any(s.kind == "exception" and s.step == step and s.evidence is not None for s in self.all)

    def withdraw(self, suspicion: Suspicion) -> None:
        """It was nothing."""
        self.all = [known for known in self.all if known is not suspicion]

    def forget_unlocated(self, step: int) -> None:
        """A replay has shown what was only seen in this step."""
        self.all = [known for known in self.all if known.step != step or known.evidence is not None]

    def failures(self, *, trained: bool) -> list[Suspicion]:
        """Those that are failures of the run and not handled by the script itself."""
        serious = [s for s in self.all if self._failed(s)]
        strong = [s for s in serious if s.kind not in ("result", "spike")]
        if strong:
            return strong
        return [s for s in serious if s.kind == "spike" or not trained]

    def _failed(self, suspicion: Suspicion) -> bool:
        if suspicion.expected:
            return False
        return suspicion.touched_state or not suspicion.progress

    @property
    def is_settled(self) -> bool:
        """One of them is a failure whatever comes: it has been trained on."""
        return any(s.touched_state and not s.expected and s.kind not in _WEAK for s in self.all)

    def handled(self) -> list[Suspicion]:
        """Bad values that the script met and dealt with."""
        return [
            s
            for s in self.all
            if not self._failed(s) and not s.expected and s.kind not in ("result", "spike")
        ]
