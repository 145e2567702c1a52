"""StepProof: blame, culprits and remedies of a refused step, tried in forked children that can change nothing."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from stayfinite.findings import Incident, Json
from stayfinite.findings.mechanism.classify import judge
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.proven import attach
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.body_replay import BodyReplay, calls_of
from stayfinite.guarding.body_trajectory import BodyTrajectory
from stayfinite.guarding.past_steps import PastStep
from stayfinite.guarding.rate_trials import RateTrials
from stayfinite.guarding.sample_calls import batch_size, spread, with_samples
from stayfinite.guarding.trajectory import Trajectory
from stayfinite.guarding.trial_replay import TrialReplay
from stayfinite.prove.blame import Replays, blame
from stayfinite.prove.comparison import NO_GRADIENT
from stayfinite.prove.counterfactual import Counterfactual
from stayfinite.prove.expression import ExpressionRecord
from stayfinite.prove.judgement import has_smooth_form
from stayfinite.prove.live_code import NotInMemory, swapped
from stayfinite.prove.minimise import Samples
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.recover.recovery import Recovery
from stayfinite.remedies.remedy import Case
from stayfinite.sandbox.fork import forked, obstacle
from stayfinite.watch.watcher import Call, Window

_BY_SIZE = (
    Kind.GROWN,
    Kind.ABSURD_PARAMETER,
    Kind.POWER_OVERFLOW,
    Kind.CAME_IN,
    Kind.EXP_OVERFLOW,
    Kind.HALF_OVERFLOW,
    Kind.UNKNOWN,
)
_SHARE = 0.25  # of the budget, for blame and for culprits each
# of what is left, for the last steps again: more if the state is to blame
_SHARE_OF_STEPS = {False: 0.25, True: 0.6}


@dataclass(slots=True)
class StepProof:
    """Everything that can be tried on one refused step. `healthy` is the last step that went well, if it is known."""

    recovery: Recovery
    attempt: Attempt
    failed: FailedStep  # with all that is known of the run
    healthy: Window | None
    seconds: float
    say: Callable[[str], None]
    # the steps since the last good copy; None: they are no longer at hand
    past: Sequence[PastStep] | None = None
    latest: Sequence[PastStep] = ()  # the last applied steps, also those before the copy

    def prove(self, incident: Incident) -> None:
        """Say who is to blame, which samples, and what helps; written into the incident."""
        reason = self._obstacle()
        if reason is not None:
            incident.proof_remark = f"no remedy was tried: {reason}"
            return
        end = time.monotonic() + self.seconds
        report, case = ProofReport(), None
        places = self._blame()
        if places is not None:
            report.blame = blame(places)
        # In a sick state any sample fails: none of them is to be named.
        culprits = self._culprits() if report.blame not in ("flaky", "state") else None
        if report.blame != "flaky":
            for_steps = _SHARE_OF_STEPS[report.blame == "state"] if self._by_size() else 0.0
            end_of_trials = end - (end - time.monotonic()) * for_steps
            tried = Counterfactual(
                self._trial, max(1.0, end_of_trials - time.monotonic()), self.say, past=False
            )
            report, case = replace(tried.report(), blame=report.blame), tried.case
            if report.blame in ("state", "both") and case is not None and self._by_size():
                self._try_rates(report, tried, places, end)
        self._add_samples(report, culprits, case)
        if report.proved is not None and report.remark.startswith("nothing proved"):
            report.remark = ""
        if culprits is not None and incident.birth is not None:
            incident.birth = replace(incident.birth, samples=tuple(culprits[0]))
        attach(incident, report)

    def _obstacle(self) -> str | None:
        calls = self._calls(self.attempt.window)
        if not calls:
            why = self.attempt.not_repeatable or "the guard cannot call this step again"
            return (
                f"{why}; give it as a function to guard.step(fn, batch), or start the script by `stayfinite run`, "
                "which tries on a second run of it"
            )
        changed = [name for call in calls for name in call.changed_names()]
        if changed:
            return f"the step function reads {changed[0]!r} from its surroundings, which has changed since"
        reason = obstacle()
        if reason is None:
            return None
        return (
            f"{reason}; `stayfinite run` tries in a process of its own, `stayfinite replay` from the capsule"
        )

    def _calls(self, window: Window | None) -> list[Call]:
        """What makes a window's losses: its own functions, or the loop's body with its batches."""
        if window is None or window.calls or self.attempt.body is None:
            return window.calls if window is not None else []
        return calls_of(self.attempt.body, window)

    def _replay(self, texts: Mapping[str, str] | None = None) -> TrialReplay:
        if self.attempt.window.calls or self.attempt.body is None:
            return TrialReplay(self.recovery, self.attempt)
        return BodyReplay(self.recovery, self.attempt, self.attempt.body, texts or {})

    def _by_size(self) -> bool:
        """What fails is too large: then a rate, or growth, may be the cause."""
        judged = judge(self.failed)
        return bool(judged) and judged[0].how.kind in _BY_SIZE

    def _try_rates(
        self, report: ProofReport, tried: Counterfactual, places: Replays | None, end: float
    ) -> None:
        """What shows over many steps: going back, rates, warm-up, bounded growth; whether a wider dtype lasts."""
        past, case = self.past, tried.case
        assert case is not None
        if past is None or not self.recovery.last_good.available:
            self._only_this_batch(report, places)
            return
        trials = RateTrials(self._trajectory(past), case, end, self.say)
        report.tried = trials.added_to(report, tried.attempted)
        report.tried.sort(key=lambda one: (one.control, not one.proved))
        if trials.remark and (not report.remark or report.proved is not None):
            report.remark = trials.remark

    def _trajectory(self, past: Sequence[PastStep]) -> Trajectory:
        body = self.attempt.body
        if self.attempt.window.calls or body is None:
            return Trajectory(self.recovery, self.attempt, past, self.latest)
        return BodyTrajectory(self.recovery, self.attempt, past, self.latest, body)

    def _only_this_batch(self, report: ProofReport, places: Replays | None) -> None:
        """The steps since the copy are gone: all that can be said is how this batch does in it."""
        if places is None or places.this_good is None:
            return
        works = places.this_good is False
        report.tried.append(
            Tried(
                "rolled-back",
                "go back to the last good copy, at a lower learning rate",
                "proved" if works else "failed",
                "" if works else "the last good copy fails on this batch, too",
            )
        )
        report.tried.sort(key=lambda one: (one.control, not one.proved, one.remedy != "rolled-back"))

    def _add_samples(
        self, report: ProofReport, culprits: tuple[list[int], bool] | None, case: Case | None
    ) -> None:
        """Leaving the failing samples out: no cure for those that could be learnt from."""
        if culprits is None or report.blame not in ("data", "both"):
            return
        samples, rest_is_finite = culprits
        named = ", ".join(map(str, samples[:8]))
        one_learns = any(one.proved and one.gradient for one in report.tried)
        if not rest_is_finite:
            verdict, reason = "failed", "the rest of the batch fails, too"
        elif one_learns or (case is not None and has_smooth_form(case)):
            verdict, reason = NO_GRADIENT
        else:
            verdict, reason = "proved", ""
        report.tried.append(
            Tried(
                "dropped-samples",
                f"leave sample {named} out of the batch"
                if len(samples) == 1
                else f"leave samples {named} out",
                verdict,
                reason,
                distortion=None,
            )
        )
        report.tried.sort(key=lambda one: (one.control, not one.proved, one.remedy == "dropped-samples"))

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
        replay = self._replay(plan.texts)
        record = ExpressionRecord(plan.failing, replay.only_looking, plan.names)
        try:
            with ExitStack() as stack:
                stack.enter_context(record.in_effect())
                in_body = self.attempt.body is not None and self.attempt.body.edited(plan.texts)
                stack.enter_context(swapped(plan.texts, required=not in_body))
                for remedy in plan.remedies:
                    context = remedy.applied()
                    if context is not None:
                        stack.enter_context(context)
                result = replay.with_update(self.healthy if plan.texts or plan.remedies else None)
        except NotInMemory as reason:
            result = TrialResult(error=str(reason))
        result.values, result.learns, result.inputs = record.values, record.learns, record.inputs
        result.moved = [*self._usual_updates(), *result.moved]
        result.failures = [replace(one, judged=judge(one)) for one in map(self._with_facts, result.failures)]
        return result

    def _with_facts(self, found: FailedStep) -> FailedStep:
        """A failure of the replay is one of this run: a judge may ask for its scaler, or for its updates."""
        run, now = self.failed.run, self.failed.step
        history = tuple(replace(record, step=record.step - now) for record in run.history)
        return replace(found, run=replace(run, history=history))

    def _usual_updates(self) -> list[tuple[int, float]]:
        """How far the updates before this step moved the weights; this one is step 0."""
        history = self.failed.run.history
        return [
            (r.step - self.failed.step, r.update_ratio)
            for r in history
            if r.update_ratio is not None and r.step < self.failed.step
        ]

    def _blame(self) -> Replays | None:
        """This batch and another one, in the present state and in the last good one; this one three times."""
        self.say("asking whether the batch or the state is to blame")

        def ask() -> Json:
            this, other = self._calls(self.attempt.window), self._calls(self.healthy)
            again = [self._fails(this) for _ in range(3)]
            found: dict[str, Json] = {"again": list(again), "other": self._fails(other) if other else None}
            with self.recovery.ranks.ignored():  # a child's: nobody else goes back
                if went_back := self.recovery.last_good.available:
                    self.recovery.last_good.restore()
            if went_back:
                found["this_good"] = self._fails(this, keep=True)
                found["other_good"] = self._fails(other, keep=True) if other else None
            return found

        value = self._answer(ask)
        if value is None:
            return None
        return Replays(tuple(value["again"]), value["other"], value.get("this_good"), value.get("other_good"))

    def _answer(self, ask: Callable[[], Json]) -> dict[str, Any] | None:
        """What a child finds; None if it found nothing, or not in its share of the time."""
        done = forked(ask, self.seconds * _SHARE)
        return done.value if done.finished and isinstance(done.value, dict) else None

    def _fails(self, calls: Sequence[Call], *, keep: bool = False) -> bool:
        """Whether these losses, their gradients or the update are bad. `keep`: from the state as it is now."""
        return self._replay().fails(calls, from_now=keep)

    def _culprits(self) -> tuple[list[int], bool] | None:
        """The samples that fail alone, and whether the rest of the batch is finite without them."""
        calls = [spread(call) for call in self._calls(self.attempt.window)]
        count = batch_size(calls[0]) if len(calls) == 1 else None
        if count is None or count < 2:
            return None
        self.say("asking which samples fail")
        born = self.failed.birth.birth.samples if self.failed.birth is not None else ()

        def ask() -> Json:
            asked = Samples(lambda chosen: self._fails([with_samples(calls[0], chosen, count)]))
            found = asked.culprits(count, born)
            if found is None or len(found) == count:
                return None
            rest = [one for one in range(count) if one not in found]
            return {"samples": list(found), "rest": not self._fails([with_samples(calls[0], rest, count)])}

        value = self._answer(ask)
        return (value["samples"], value["rest"]) if value is not None else None


def _packed(result: TrialResult) -> str:
    buffer = io.BytesIO()
    torch.save(result, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> TrialResult:
    """What our own child has said: as trustworthy as this process, whose copy it was."""
    result: TrialResult = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=False)
    return result
