"""`stayfinite run` on several ranks of this host: every rank is guarded, and there is one folder and one report."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stayfinite.findings import Incident
from stayfinite.launch.options import Options
from stayfinite.launch.rank_processes import RankProcesses, rank_environments
from stayfinite.launch.rank_report import FOLDER_VARIABLE, merged, read_all
from stayfinite.launch.records import write
from stayfinite.launch.run_folder import RunFolder

Report = Callable[[list[Incident], list[str], list[Path]], None]
Commands = list[tuple[Sequence[str], Mapping[str, str]]]
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def is_torchrun(options: Options) -> bool:
    """The target starts ranks itself: `-m torch.distributed.run`, or the command torchrun."""
    return options.target in LAUNCHERS if options.module else Path(options.target).stem == "torchrun"


def run_on_ranks(options: Options, ranks: int, say: Callable[[str], None], report: Report) -> int:
    """Start the script so many times, as torchrun does on one host; gives the first exit code that is not 0."""

    def commands(worker: list[str]) -> Commands:
        environments = rank_environments(ranks, os.environ)
        return [([sys.executable, *worker], environment) for environment in environments]

    return _launch(options, commands, say, report)


def run_under_torchrun(options: Options, say: Callable[[str], None], report: Report) -> int:
    """torchrun with the arguments it was given, and guarded workers."""
    from torch.distributed.run import get_args_parser

    asked = get_args_parser().parse_args(list(options.arguments))
    if asked.no_python:
        raise ValueError("torchrun --no-python starts another program than python, which cannot be guarded")
    own = options.arguments[: len(options.arguments) - len(asked.training_script_args) - 1]
    for_torchrun = [argument for argument in own if argument not in ("-m", "--module")]
    script = replace(
        options,
        target=asked.training_script,
        arguments=tuple(asked.training_script_args),
        module=bool(asked.module),
    )

    def commands(worker: list[str]) -> Commands:
        return [([sys.executable, "-m", "torch.distributed.run", *for_torchrun, *worker], os.environ)]

    return _launch(script, commands, say, report)


def _launch(
    options: Options, commands: Callable[[list[str]], Commands], say: Callable[[str], None], report: Report
) -> int:
    folder, processes = RunFolder(options.run_dir), RankProcesses(say)
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as exchange:
        worker = ["-m", "stayfinite", *_arguments(replace(options, run_dir=folder.open()))]
        processes.start(
            [
                (command, {**environment, FOLDER_VARIABLE: exchange})
                for command, environment in commands(worker)
            ]
        )
        code = processes.wait()
        reports = read_all(Path(exchange))
    incidents, remarks = merged(reports)
    folder.close(keep=bool(incidents) or any(one.refused for one in reports), of_all_ranks=True)
    write(options, folder.path, incidents)
    report(incidents, remarks, [path for path in (options.output, folder.path) if path is not None])
    return 130 if processes.interrupted and code in (0, 130) else code


def _arguments(options: Options) -> list[str]:
    """The command of one rank. What is written and shown when all is over is not a rank's business."""
    given: list[str] = ["run", "--locate", options.locate, "--locate-limit", str(options.locate_limit)]
    given += ["--prove-limit", str(options.prove_limit)]
    given += ["--prove" if options.prove else "--no-prove", "--fail-under", str(options.fail_under)]
    given += ["--max-incidents", str(options.max_incidents), "--run-dir", str(options.run_dir)]
    given += ["--policy", options.policy] if options.policy is not None else []
    given += ["--clip", str(options.clip)] if options.clip is not None else []
    return [*given, *(["-m"] if options.module else []), options.target, *options.arguments]
