"""Trial: the script once more in a forked child, with a remedy in effect, and what became of it."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings.mechanism.classify import judge
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StepRecord
from stayfinite.launch import beginning, script
from stayfinite.launch.arranged_step import ArrangedStep
from stayfinite.launch.options import Options
from stayfinite.launch.script import ScriptEnd, run_as_main
from stayfinite.launch.session import Session
from stayfinite.launch.trial_files import TrialFiles
from stayfinite.prove.expression import ExpressionRecord
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.replay.installing import compiled_code_runs_eagerly

_FURTHER_AFTER_FAILURE = 3  # of an untouched run, which may have more than one place to look at
_OF_STEPS = ("trace_from_step", "trace_until_step", "stop_after_step")
_TRAINED = ("parameter", "optimizer state")  # a buffer may hold -Inf by design: a mask


def run_trial(
    options: Options, state: Path, plan: Plan, seconds: float, *, in_a_copy: bool = False
) -> TrialResult:
    """Fork, run the script under the tracer with the plan in effect, and give what the child tells.

    `in_a_copy`: all files are a copy, in which this process is, too; then what the child did to them is undone.
    """
    begun = time.monotonic()
    exchange = state.parent / "trial.pt"
    exchange.unlink(missing_ok=True)
    files = TrialFiles(state.parent / "trial.files") if in_a_copy else None
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            _inside(options, state, plan, exchange, files)
        finally:
            os._exit(3)
    in_time = False
    try:
        in_time = _ended(child, begun + max(0.1, seconds))
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # and whatever it has started
        if not in_time:
            os.waitpid(child, 0)
        if files is not None:
            files.put_back()
    if exchange.exists():
        result: TrialResult = torch.load(exchange, weights_only=False)
    else:
        result = TrialResult(ended="died" if in_time else "timed out")
    result.seconds = time.monotonic() - begun
    return result


def _ended(child: int, deadline: float) -> bool:
    """Wait for the child; False if its time is over."""
    pause = 0.001
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return True


def _inside(options: Options, state: Path, plan: Plan, exchange: Path, files: TrialFiles | None) -> None:
    os.environ[beginning.VARIABLE] = str(state)
    asked = beginning.restore() or {}
    if plan.until is not None:
        asked["stop_after_step"] = plan.until
    if plan.follow_from is not None:
        asked["trace_from_step"] = plan.follow_from
    if plan.follow_until is not None:
        asked["trace_until_step"] = plan.follow_until
    session = Session(_traced(options, asked), files.observe(options) if files is not None else None)
    arranged = ArrangedStep(plan.arrangement, session) if plan.arrangement is not None else None
    record = ExpressionRecord(plan.failing, session.tracer.only_looking, plan.names)
    told = False

    def tell(outcome: ScriptEnd) -> None:
        nonlocal told
        if told:
            return
        told = True
        session.finish(outcome)
        if files is not None:
            files.tell()
        result = _result(session, outcome, record)
        result.arranged = arranged is not None and arranged.made
        torch.save(result, exchange.with_suffix(".part"))
        exchange.with_suffix(".part").replace(exchange)

    leave, process = os._exit, os.getpid()

    def hard_exit(code: int) -> None:
        if os.getpid() == process:
            tell(ScriptEnd(code))
        leave(code)

    further = 0 if plan.texts or plan.remedies else _FURTHER_AFTER_FAILURE

    def end_when_settled(record: StepRecord) -> None:
        nonlocal further
        if session.detector.suspicions.is_settled:
            if further == 0:
                hard_exit(0)  # what has failed needs no further steps
            further -= 1

    os._exit = hard_exit  # type: ignore[assignment]
    with ExitStack() as stack:
        stack.enter_context(record.in_effect())
        if plan.follow_from is None:  # what began eagerly is not compiled where nobody follows any more
            stack.callback(compiled_code_runs_eagerly())
        _install(plan.texts)
        session.start()
        session.history.listeners.append(end_when_settled)
        if arranged is not None:
            arranged.install()
        for remedy in plan.remedies:
            context = remedy.applied()
            if context is not None:
                stack.enter_context(context)
        outcome = run_as_main(options.target, options.arguments, module=options.module)
    tell(outcome)
    leave(0)


def _traced(options: Options, asked: dict[str, Any]) -> Options:
    known = {key: asked[key] for key in _OF_STEPS if key in asked}
    return replace(options, traced=True, locate="off", output=None, run_dir=None, **known)


def _install(texts: dict[str, str]) -> None:
    """These files are read as these texts, by the script itself and by imports."""
    if not texts:
        return
    original: Callable[..., Any] = SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> Any:
        text = texts.get(os.path.realpath(loader.path))
        if text is None:
            return original(loader, fullname)
        return compile(text, loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
    script.REPLACED.update(texts)
    for file, text in texts.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _result(session: Session, outcome: ScriptEnd, record: ExpressionRecord) -> TrialResult:
    failures = []
    for suspicion in session.failures():
        step = suspicion.evidence or FailedStep(suspicion.step, "state", suspicion.kind)
        step = session.observers.complete(step)  # a judge may ask what the run did: its scaler, its updates
        failures.append(replace(step, judged=judge(step)))
    error = outcome.error
    return TrialResult(
        failures=failures,
        error=f"{type(error).__name__}: {error}"[:300] if error is not None else None,
        losses=[(r.step, r.loss) for r in session.history.whole if r.loss is not None],
        moved=[(r.step, r.update_ratio) for r in session.history.whole if r.update_ratio is not None],
        steps=session.history.step - 1,  # that is the number of the next one
        values=record.values,
        learns=record.learns,
        inputs=record.inputs,
        applied=session.history.updates,
        left_bad=tuple(sorted(name for owner, name in session.bad_state if owner in _TRAINED)),
    )
