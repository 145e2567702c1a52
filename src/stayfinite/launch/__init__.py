"""`stayfinite run`: watches a script that was not changed, and explains what failed in it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from stayfinite.findings import Incident
from stayfinite.launch import second_run
from stayfinite.launch.options import Options
from stayfinite.launch.records import write
from stayfinite.launch.scratch_files import ScratchFiles
from stayfinite.launch.script import Outcome, run_as_main
from stayfinite.launch.session import Session

__all__ = ["Options", "run"]


def run(options: Options, report: Callable[[list[Incident], list[str], list[Path]], None]) -> int:
    """Run the script under guard; returns the script's own exit code, or 1 if the policy stopped it.

    `report` is given the incidents, remarks and places of files when the script is over.
    """
    made_before = second_run.Beginning.restore_from_environment()
    beginning = second_run.Beginning()
    scratch = ScratchFiles(options.scratch, made_before) if options.scratch is not None else None
    session = Session(options, scratch or beginning.made)
    reported = False

    def finish(outcome: Outcome) -> None:
        nonlocal reported
        if reported:
            return
        reported = True
        incidents, remarks = _conclude(session, options, beginning, outcome)
        session.close(incidents)
        write(options, session.folder.path, incidents)
        files = [path for path in (options.output, session.folder.path) if path is not None]
        report(incidents, remarks, files)

    _flush_before_hard_exit(finish)
    session.start()
    outcome = run_as_main(options.target, options.arguments, module=options.module)
    finish(outcome)
    if outcome.interrupted:
        _die_of_interrupt()
    return outcome.exit_code


def _conclude(
    session: Session, options: Options, beginning: second_run.Beginning, outcome: Outcome
) -> tuple[list[Incident], list[str]]:
    """The incidents of the run, located by a second run where the first was not traced."""
    incidents, remarks = session.finish(outcome), list(session.remarks())
    if not session.needs_second_run or options.trace != "failure" or outcome.interrupted:
        return incidents, remarks
    obstacle = second_run.possible()
    if obstacle is not None:
        return [*session.unlocated(), *incidents], [
            *remarks,
            f"The failure could not be located: {obstacle}.",
        ]
    print("stayfinite: the run failed; running the script again to find where.", file=sys.stderr, flush=True)
    located = second_run.run_again(options, beginning, session.failing_step, session.seconds_to_failure)
    if located:
        return located, remarks
    return [*session.unlocated(), *incidents], [
        *remarks,
        "A second, traced run did not fail in the same way.",
    ]


def _flush_before_hard_exit(finish: Callable[[Outcome], None]) -> None:
    """os._exit skips everything; write the record first. A forked child leaves as it always did."""
    real, process = os._exit, os.getpid()

    def leave(code: int) -> None:
        if os.getpid() == process:
            finish(Outcome(code))
        real(code)

    os._exit = leave  # type: ignore[assignment]


def _die_of_interrupt() -> None:
    """End like python does after Ctrl-C: handlers run, then the signal itself ends the process."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
