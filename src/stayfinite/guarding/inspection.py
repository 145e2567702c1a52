"""Inspection: a look at all state, by all ranks together. What is bad is put back from the last good copy."""

from __future__ import annotations

from torch import Tensor

from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.replica_check import ReplicaCheck
from stayfinite.guarding.run import GuardedRun
from stayfinite.hooks.interrupts import interrupts_wait
from stayfinite.recover.lastgood import all_can_go_back
from stayfinite.recover.ranks import joined, packed
from stayfinite.recover.replicas import ReplicaNumbers, Replicas
from stayfinite.recover.replicated_copy import Slot
from stayfinite.report.refusal import listed
from stayfinite.shards import state_of

_NO_COPY = "there is no copy to repair it from"


class Inspection:
    """Every rank puts back what is bad on any of them, so that replicas stay alike."""

    def __init__(self, run: GuardedRun, explainer: Explainer) -> None:
        self._run, self._explainer = run, explainer
        self._state, self._reporter = run.state, run.reporter
        self._check = ReplicaCheck(run.state.models.values(), run.state.parameter_names)
        self._replicas = Replicas(run.state)
        self.alike: list[Slot] = []  # on all ranks, as the last look before a copy has shown

    @property
    def are_replicas(self) -> bool:
        return bool(self._check.are_replicas)

    @interrupts_wait()
    def look(self, *, before_copy: bool = False) -> bool:
        """Is all state finite? What is not is reported, and repaired from the last good copy where that is possible."""
        step, last_good = self._reporter.step, self._run.recovery.last_good
        names, available = self.seen_by_all(before_copy=before_copy)
        if not names:
            return True
        what = f"before step {step}: {listed(names)}"
        beyond_repair = not available or any(kind == "parameter" for kind, _, _ in self._named(names))
        self._explainer.bad_state("rollback" if beyond_repair and available else "none")
        if not available:
            no_copy = "the copy to repair it from is with rank 0" if last_good.is_elsewhere else _NO_COPY
            self._reporter.tell("warning", f"{what} holds NaN or Inf, and {no_copy}")
        elif beyond_repair:
            back = self._run.recovery.roll_back(step)
            self._run.watcher.forget()
            self._run.foresight.went_back(step)
            self._reporter.tell("rollback", f"{what} held NaN or Inf; {back}")
        else:
            wanted = self._run.ranks.union([name for _, name, _ in self._whole_entries(names)])
            last_good.put_back(wanted, [tensor for _, _, tensor in self._named(wanted)])
            left, _ = self.seen_by_all(before_copy=before_copy)
            how = (
                f"as at step {last_good.step} again" if not left else f"{listed(left)} could not be repaired"
            )
            self._reporter.tell("repair", f"{what} held NaN or Inf; {how}")
            return not left
        return False

    def seen_by_all(self, *, before_copy: bool = False) -> tuple[list[str], bool]:
        """What is not finite on any rank, and whether all can go back. Replicas are compared by the way."""
        bad, last_good = self.bad_here(), self._run.recovery.last_good
        self.alike = []
        if not self._run.ranks.together:
            return bad, last_good.available
        own = self._replicas.numbers() if before_copy and not bad else ReplicaNumbers()
        told = self._run.ranks.exchange(
            packed(bad), self._check.fingerprint(), last_good.mark, own.order, own.moments
        )
        fingerprints, marks, orders, moments = zip(*(numbers for _, numbers in told), strict=True)
        drift = self._check.look(self._reporter.step, fingerprints)
        if drift is not None:
            self._explainer.drifted(drift)
        names = joined(text for text, _ in told)
        if before_copy and not names:
            self.alike = self._replicas.alike(fingerprints, orders, moments)
        return names, all_can_go_back(marks)

    def agreed(self, is_bad: bool) -> tuple[bool, bool]:
        """Is the state bad on any rank, and can all go back? The same answer on every rank; all must ask."""
        told = self._run.ranks.exchange(b"", int(is_bad), self._run.recovery.last_good.mark)
        return any(bad for _, (bad, _) in told), all_can_go_back([mark for _, (_, mark) in told])

    def bad_here(self) -> list[str]:
        return [name for _, name, _ in self._run.health.bad_tensors()]

    def _named(self, names: list[str]) -> list[tuple[str, str, Tensor]]:
        return [slot for slot in self._state.tensors() if slot[1] in names]

    def _whole_entries(self, names: list[str]) -> list[tuple[str, str, Tensor]]:
        """With a bad moment, all that an optimizer keeps of its parameter: a mean without its square is worse."""
        wanted = {id(tensor) for _, _, tensor in self._named(names)}
        for entry in (
            entry for optimizer in self._state.optimizers for entry in state_of(optimizer).values()
        ):
            own = {id(value) for value in entry.values() if isinstance(value, Tensor)}
            if own & wanted:
                wanted |= own
        return [slot for slot in self._state.tensors() if id(slot[2]) in wanted]
