"""`stayfinite run`: watches a script that was not changed, and explains what failed in it."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stayfinite.findings import Incident
from stayfinite.launch import beginning, second_run
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.on_ranks import is_torchrun, run_on_ranks, run_under_torchrun
from stayfinite.launch.options import Options
from stayfinite.launch.own_loads import without_its_own_loads
from stayfinite.launch.rank_place import RankPlace
from stayfinite.launch.records import write, write_end
from stayfinite.launch.script import ScriptEnd, run_as_main
from stayfinite.launch.session import Session

__all__ = ["Options", "is_torchrun", "run", "run_on_ranks", "run_under_torchrun"]


def run(options: Options, report: Callable[[list[Incident], list[str], list[Path]], None]) -> int:
    """Run the script under guard; returns the script's own exit code, or 1 if the policy stopped it.

    `report` is given the incidents, remarks and places of files when the script is over.
    """
    asked = beginning.restore()
    if asked is not None:
        options = replace(options, traced=True, locate="off", **asked)
    place = RankPlace.of_environment()
    place.die_with_launcher()
    start = beginning.Beginning()
    observed = start.files if options.locate != "off" else None
    session = Session(options, observed, place)
    reported = False

    def finish(outcome: ScriptEnd) -> None:
        nonlocal reported
        if reported:
            return
        reported = True
        with place.last_words():
            conclude(outcome)

    def conclude(outcome: ScriptEnd) -> None:
        incidents, remarks = _conclude(session, options, start, outcome)
        if options.prove and incidents and not options.traced and not outcome.interrupted:
            from stayfinite.launch import proof  # needed by a failure only

            proof.prove(options, start, incidents, session.elapsed, _say)
        start.files.close()
        session.close(incidents)
        if options.ended is not None:
            write_end(Path(options.ended), session.history.step, outcome.error)
        if place.reports is not None:
            session.rank_report(incidents, remarks).write(place.reports)
            return
        if place.rank > 0:  # rank 0 tells what all ranks know
            incidents = session.known_here_alone(incidents, outcome)
            if not incidents:
                return
        folder = session.folder.own
        write(_own_output(options, place.rank), folder, incidents)
        if incidents and not place.several:
            from stayfinite.launch.script_capsule import write_script_capsules  # needed by a failure only

            write_script_capsules(folder, incidents, options, start)
        report(incidents, remarks, [path for path in (options.output, folder) if path is not None])

    _flush_before_hard_exit(finish)
    session.start()
    if observed is not None:
        start.watch_files(options.target, options.arguments)
    gc.freeze()  # what is there now is not the script's: nobody need go through it again to find its models
    outcome = run_as_main(options.target, options.arguments, module=options.module)
    finish(outcome)
    if outcome.interrupted:
        _die_of_interrupt()
    return outcome.exit_code or int(session.most_refused)


def _conclude(
    session: Session, options: Options, start: Beginning, outcome: ScriptEnd
) -> tuple[list[Incident], list[str]]:
    """The incidents of the run, located by a second run where the first was not traced."""
    incidents, remarks = session.finish(outcome), list(session.remarks())
    start.ranks = session.ranks
    if options.traced or outcome.interrupted:
        return incidents, remarks
    if session.needs_second_run:
        counted = session.observers.optimizers.known  # steps are those of optimizers
        what = f"step {session.first_failing_step} failed" if counted else "the script failed"
        failure = second_run.FailurePoint(session.failing_step, session.seconds_to_failure, what)
    elif (doubt := session.doubt(incidents)) is not None:
        failure = second_run.FailurePoint(session.history.step, session.seconds, doubt, of_the_whole=True)
        if not failure.is_early:
            return incidents, remarks
    else:
        return incidents, remarks
    reason = "--locate off" if options.locate == "off" else second_run.obstacle(options, start, failure)
    if reason is not None:
        return [*session.unlocated(reason), *incidents], remarks
    try:
        found = second_run.run_again(options, start, failure, _say)
    except KeyboardInterrupt:
        return [*session.unlocated("the second run was interrupted"), *incidents], remarks
    parted = failure.of_the_whole and bool(session.training.refused_for)  # the second run refuses nothing
    if parted and not any(one.birth is not None and one.birth.numel for one in found.incidents):
        return incidents, remarks
    if found.incidents or session.needs_second_run:
        remarks += found.remarks
    if found.incidents:
        own = [finding for incident in session.unlocated() for finding in incident.findings]
        refused = session.training.refused_for
        located = second_run.on_the_same_course(found.incidents, refused)
        located = second_run.without_its_own_state(located, session.bad_state, refused)
        if refused:
            located = without_its_own_loads(located, session.observers.load_events)
        if located:
            return second_run.as_the_first_run_had_it(located, own), remarks
        found.reason = "the second run failed in what it had saved itself"
    if found.reason and not session.needs_second_run:
        _say(f"{found.reason}; nothing was located")
    reproduced = False if found.reached else None
    return [*session.unlocated(found.reason, reproduced=reproduced), *incidents], remarks


def _own_output(options: Options, rank: int) -> Options:
    """Under torchrun, what only a later rank knows goes beside the file that rank 0 writes."""
    if options.output is None or rank == 0:
        return options
    return replace(options, output=options.output.with_suffix(f".rank{rank}{options.output.suffix}"))


def _say(text: str) -> None:
    print(f"stayfinite: {text}", file=sys.stderr, flush=True)


def _flush_before_hard_exit(finish: Callable[[ScriptEnd], None]) -> None:
    """os._exit skips everything; write the record first. A forked child leaves as it always did."""
    real, process = os._exit, os.getpid()

    def leave(code: int) -> None:
        if os.getpid() == process:
            finish(ScriptEnd(code))
        real(code)

    os._exit = leave  # type: ignore[assignment]


def _die_of_interrupt() -> None:
    """End like python does after Ctrl-C: handlers run, then the signal itself ends the process."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
