"""StepProof: blame, culprits and remedies of a refused step, tried in forked children that can change nothing."""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from stayfinite.findings import Incident, Json
from stayfinite.findings.mechanism.classify import judge
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.proven import attach
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.locate import Replay
from stayfinite.prove.blame import Replays, blame
from stayfinite.prove.counterfactual import Counterfactual
from stayfinite.prove.expression import ExpressionRecord
from stayfinite.prove.live_code import NotInMemory, swapped
from stayfinite.prove.minimise import Samples
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.recover.recovery import Recovery
from stayfinite.sandbox.fork import forked, obstacle
from stayfinite.watch.losses import as_loss, split_aux
from stayfinite.watch.watcher import Call, Window

_BY_SIZE = (
    Kind.GROWN,
    Kind.ABSURD_PARAMETER,
    Kind.POWER_OVERFLOW,
    Kind.CAME_IN,
    Kind.EXP_OVERFLOW,
    Kind.HALF_OVERFLOW,
)
_WIDER = (
    "float32-operation",
    "autocast-off",
    "autocast-bfloat16",
    "bfloat16",
    "float32",
    "float32-accumulator",
)
_SHARE = 0.25  # of the budget, for blame and for culprits each


@dataclass(slots=True)
class StepProof:
    """Everything that can be tried on one refused step. `healthy` is the last step that went well, if it is known."""

    recovery: Recovery
    attempt: Attempt
    healthy: Window | None
    seconds: float
    say: Callable[[str], None]

    def prove(self, incident: Incident, evidence: FailedStep) -> None:
        """Say who is to blame, which samples, and what helps; written into the incident."""
        reason = self._obstacle()
        if reason is not None:
            incident.proof_remark = f"no remedy was tried: {reason}"
            return
        end = time.monotonic() + self.seconds
        report = ProofReport()
        places = self._blame()
        if places is not None:
            report.blame = blame(places)
        culprits = self._culprits(evidence) if report.blame != "flaky" else None
        if report.blame != "flaky":
            tried = Counterfactual(self._trial, max(1.0, end - time.monotonic()), self.say, past=False)
            report = replace(tried.report(), blame=report.blame)
        self._add(report, places, culprits, evidence)
        if culprits is not None and incident.birth is not None:
            incident.birth = replace(incident.birth, samples=tuple(culprits[0]))
        attach(incident, report)

    def _obstacle(self) -> str | None:
        calls = self.attempt.window.calls
        if not calls:
            return "the body of a loop is not called by the guard; guard.step(fn, batch) lets it try"
        changed = [name for call in calls for name in call.changed_names()]
        if changed:
            return f"the step function reads {changed[0]!r} from its surroundings, which has changed since"
        return obstacle()

    def _add(
        self,
        report: ProofReport,
        places: Replays | None,
        culprits: tuple[list[int], bool] | None,
        evidence: FailedStep,
    ) -> None:
        """What is known beside the remedies at the line: going back, leaving samples out."""
        judged = judge(evidence)
        by_size = bool(judged) and judged[0].how.kind in _BY_SIZE
        if (
            places is not None
            and places.this_good is not None
            and report.blame in ("state", "both")
            and by_size
        ):
            works = places.this_good is False
            report.tried.append(
                Tried(
                    "rolled-back",
                    "go back to the last good copy, at a lower learning rate",
                    "proved" if works else "failed",
                    "" if works else "the last good copy fails on this batch, too",
                )
            )
        if culprits is not None and report.blame in ("data", "both"):
            samples, rest_is_finite = culprits
            named = ", ".join(map(str, samples[:8]))
            report.tried.append(
                Tried(
                    "dropped-samples",
                    f"leave sample {named} out of the batch"
                    if len(samples) == 1
                    else f"leave samples {named} out",
                    "proved" if rest_is_finite else "failed",
                    "" if rest_is_finite else "the rest of the batch fails, too",
                    distortion=None,
                )
            )
        if report.blame == "state" and any(
            one.remedy == "rolled-back" and one.proved for one in report.tried
        ):
            report.tried = [_postponed(one) if one.remedy in _WIDER else one for one in report.tried]
        report.tried.sort(key=lambda one: (one.control, not one.proved, one.reason != ""))
        if report.proved is not None and report.remark.startswith("nothing proved"):
            report.remark = ""

    # -- in a child --------------------------------------------------------------------------------------

    def _trial(self, plan: Plan, seconds: float) -> TrialResult:
        begun = time.monotonic()
        done = forked(lambda: _packed(self._judged(plan)), seconds)
        if done.status == "timed out":
            result = TrialResult(ended="timed out")
        elif not done.finished or not isinstance(done.value, str):
            result = TrialResult(error=done.reason or "the child died")
        else:
            result = _unpacked(done.value)
        result.seconds = time.monotonic() - begun
        return result

    def _judged(self, plan: Plan) -> TrialResult:
        replay = _TrialReplay(self.recovery, self.attempt)
        record = ExpressionRecord(plan.failing, replay.only_looking, plan.names)
        try:
            with ExitStack() as stack:
                stack.enter_context(record.in_effect())
                stack.enter_context(swapped(plan.texts))
                for remedy in plan.remedies:
                    context = remedy.applied()
                    if context is not None:
                        stack.enter_context(context)
                result = replay.with_update(self.healthy if plan.texts or plan.remedies else None)
        except NotInMemory as reason:
            result = TrialResult(error=str(reason))
        result.values, result.learns, result.inputs = record.values, record.learns, record.inputs
        return result

    def _blame(self) -> Replays | None:
        """This batch and another one, in the present state and in the last good one; this one three times."""
        self.say("asking whether the batch or the state is to blame")

        def ask() -> Json:
            this, other = self.attempt.window.calls, self.healthy.calls if self.healthy is not None else None
            again = [self._fails(this) for _ in range(3)]
            found: dict[str, Json] = {"again": list(again), "other": self._fails(other) if other else None}
            with self.recovery.ranks.ignored():  # a child's: nobody else goes back
                if went_back := self.recovery.last_good.available:
                    self.recovery.last_good.restore()
            if went_back:
                found["this_good"] = self._fails(this, keep=True)
                found["other_good"] = self._fails(other, keep=True) if other else None
            return found

        done = forked(ask, self.seconds * _SHARE)
        if not done.finished or not isinstance(done.value, dict):
            return None
        value: dict[str, Any] = done.value
        return Replays(tuple(value["again"]), value["other"], value.get("this_good"), value.get("other_good"))

    def _fails(self, calls: Sequence[Call], *, keep: bool = False) -> bool:
        """Whether these losses, their gradients or the update are bad. `keep`: from the state as it is now."""
        replay = _TrialReplay(self.recovery, self.attempt)
        return replay.fails(calls, from_now=keep)

    def _culprits(self, evidence: FailedStep) -> tuple[list[int], bool] | None:
        """The samples that fail alone, and whether the rest of the batch is finite without them."""
        calls = [_spread(call) for call in self.attempt.window.calls]
        count = _batch_size(calls[0]) if len(calls) == 1 else None
        if count is None or count < 2:
            return None
        self.say("asking which samples fail")
        born = evidence.birth.birth.samples if evidence.birth is not None else ()

        def ask() -> Json:
            asked = Samples(lambda chosen: self._fails([_with_samples(calls[0], chosen, count)]))
            found = asked.culprits(count, born)
            if found is None or len(found) == count:
                return None
            rest = [one for one in range(count) if one not in found]
            return {"samples": list(found), "rest": not self._fails([_with_samples(calls[0], rest, count)])}

        done = forked(ask, self.seconds * _SHARE)
        if not done.finished or not isinstance(done.value, dict):
            return None
        value: dict[str, Any] = done.value
        return value["samples"], value["rest"]


def _postponed(one: Tried) -> Tried:
    """A wider dtype for what has grown: finite today. The last good copy does not need it."""
    if not one.proved:
        return one
    return replace(
        one,
        reason="finite now, but it postpones: the state has grown, and the last good copy needs no such thing",
    )


class _TrialReplay(Replay):
    """A step once more, with its update; in a child, where everything that it changes is lost anyway."""

    def with_update(self, healthy: Window | None) -> TrialResult:
        """Follow the step and its update; then a healthy one with what came of it."""
        calls, batches = self._attempt.window.calls, self._attempt.window.batches
        losses: list[tuple[int, float]] = []
        applied = 0
        with self.prepared():
            for call, batch in zip(calls, batches, strict=True):
                with self.following(batch):
                    loss = as_loss(split_aux(call())[0]).total
                    (loss / len(calls)).backward()  # type: ignore[no-untyped-call]
                    self.saw_loss(loss)
                    with self.only_looking():
                        losses.append((0, float(loss.detach())))
            found = self.evidence()
            if found is None:
                with self.following(None):
                    self.try_update(self._attempt.make_update)
                found, applied = self.evidence(), 1
            failures = [replace(found, judged=judge(found))] if found is not None else []
        steps = 0
        if not failures and healthy is not None:
            steps = 1
            if self._is_bad(calls) or self._updated_is_bad(healthy.calls):
                failures = [FailedStep(1, "state", "loss")]
        return TrialResult(failures=failures, losses=losses, steps=steps, applied=applied)

    def _updated_is_bad(self, following: Sequence[Call]) -> bool:
        """Make the update of the gradients that are there, for good, and ask a further batch."""
        self._attempt.make_update()
        return self._is_bad(following)

    def fails(self, calls: Sequence[Call], *, from_now: bool = False) -> bool:
        """The same without following: only whether something is bad."""
        if from_now:
            return self._is_bad(calls)
        with self.prepared():
            return self._is_bad(calls)

    def _is_bad(self, calls: Sequence[Call]) -> bool:
        self._clear()
        for call in calls:
            loss = as_loss(split_aux(call())[0]).total
            if not math.isfinite(float(loss.detach().sum())):
                return True
            (loss / len(calls)).backward()  # type: ignore[no-untyped-call]
        parameters = [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
        if not all(bool(torch.isfinite(p.grad).all()) for p in parameters if p.grad is not None):
            return True
        if not self._attempt.update_was_bad:
            return False
        self._recovery.transaction.copy_before_update(self._optimizers)
        try:
            self._attempt.make_update()
            return not all(bool(torch.isfinite(p.detach()).all()) for p in parameters)
        finally:
            self._recovery.transaction.undo_update(self._optimizers)


def _packed(result: TrialResult) -> str:
    buffer = io.BytesIO()
    torch.save(result, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> TrialResult:
    """What our own child has said: as trustworthy as this process, whose copy it was."""
    result: TrialResult = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=False)
    return result


def _spread(call: Call) -> Call:
    """partial(fn, batch) as a function and its arguments."""
    fn: Any = call.fn
    arguments = call.args
    while isinstance(fn, partial) and not fn.keywords:
        fn, arguments = fn.func, (*fn.args, *arguments)
    return Call(fn, arguments, call.names)


def _batch_size(call: Call) -> int | None:
    """The common first dimension of the tensors among the arguments; None if there is none."""
    sizes = {
        leaf.shape[0]
        for argument in call.args
        if not isinstance(argument, torch.nn.Module)
        for leaf in tree_leaves(argument)
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0
    }
    return sizes.pop() if len(sizes) == 1 else None


def _with_samples(call: Call, chosen: Sequence[int], count: int) -> Call:
    """The same call with some of the samples."""
    index = torch.tensor(list(chosen), dtype=torch.long)

    def some(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == count:
            return leaf.index_select(0, index.to(leaf.device))
        return leaf

    arguments = []
    for argument in call.args:
        if isinstance(argument, torch.nn.Module):
            arguments.append(argument)
            continue
        leaves, shape = tree_flatten(argument)
        arguments.append(tree_unflatten([some(leaf) for leaf in leaves], shape))
    return Call(call.fn, tuple(arguments), call.names)
