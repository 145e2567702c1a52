"""Five real trainings that fail: unguarded until they die, guarded until they are through, and cured.

python examples/demo.py [SYSTEM ...] [--out DIR]; without a name all five, or the quickest on a slow machine.
Every run is a process of its own, as one would start it by hand; two at a time, one thread each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from stayfinite.findings import Incident
from stayfinite.report.incident import lines as report_of

HERE = Path(__file__).resolve().parent
AT_ONCE = 2
SLOW = 8.0  # GFLOP/s of one thread, below which all five would take too long
QUICKEST = "fp16_distillation"
KINDS = ("unguarded", "guarded", "safe preset", "cured")


@dataclass(frozen=True)
class System:
    """An example, its metric, and how many steps its configurations train."""

    name: str
    metric: str
    steps: int
    digits: int = 2
    more_is_better: bool = False


SYSTEMS = [
    System("fp16_distillation", "perplexity", 200, digits=1),
    System("temi_clustering", "nmi", 200, more_is_better=True),
    System("radiodiff", "nmse", 150),
    System("latent_dlm", "masked_cross_entropy", 80),
    System("mhc_ocr", "character_accuracy", 160, more_is_better=True),
]


@dataclass
class Run:
    """One training in a process of its own; its log tells how far it is."""

    system: System
    kind: str  # unguarded, guarded, safe preset, cured
    out: Path
    process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        return self.out / ("run.jsonl" if self.kind == "guarded" else "log.jsonl")

    def start(self) -> None:
        options = {
            "unguarded": ["train.py", "--stop-on-nan"],
            "guarded": ["train_guarded.py"],
            "safe preset": ["train.py", "--stop-on-nan", "--config", "config.safe.yaml"],
            "cured": ["train.py", "--stop-on-nan", "--config", "cured.yaml"],
        }[self.kind]
        self.out.mkdir(parents=True)
        with (self.out / "stdout.txt").open("w") as stdout, (self.out / "stderr.txt").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *options, "--out", str(self.out)],
                cwd=HERE / self.system.name,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=stdout,
                stderr=stderr,
                text=True,
            )

    def is_over(self) -> bool:
        if self.process is None or self.process.poll() is None:
            return False
        # 1 is what train_guarded.py ends with when the policy has stopped it.
        if self.process.returncode not in (0, 1) or (self.process.returncode == 1 and self.kind != "guarded"):
            raise RuntimeError(
                f"{self.system.name} ({self.kind}) ended with {self.process.returncode}; see {self.out}/stderr.txt"
            )
        return True

    def end(self) -> None:
        """Stop it, wherever it is."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def records(self) -> list[dict[str, Any]]:
        """The lines of its log that are steps."""
        if not self.log.exists():
            return []
        whole = [line for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [record for line in whole if "event" not in (record := json.loads(line)) and "loss" in record]

    def result(self) -> dict[str, Any]:
        """The last line it printed."""
        last: dict[str, Any] = json.loads((self.out / "stdout.txt").read_text().splitlines()[-1])
        return last

    def metric(self) -> float:
        return float(self.result()[self.system.metric])


def speed() -> float:
    """GFLOP/s of one thread in a small matmul loop."""
    torch.set_num_threads(1)
    a = torch.randn(256, 256)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.3:
        a = (a @ a).clamp(-1, 1)
        count += 1
    return count * 2 * 256**3 / (time.perf_counter() - started) / 1e9


def first_act(console: Console) -> None:
    """The README's first screen: one bad batch in a run that is fine otherwise."""
    script = HERE / "first_failure" / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        for title, options in (("the plain loop", []), ("the same training, guarded", ["--guard"])):
            console.rule(f"a small model learns to add: {title}")
            done = subprocess.run([sys.executable, str(script), *options], cwd=folder, check=True, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
            console.print(Text(done.stdout))


def train_all(systems: list[System], out: Path, console: Console) -> dict[str, dict[str, Run]]:
    """Run every training of the systems, two at a time, and show how far each one is."""
    waiting = [Run(s, kind, out / s.name / kind.replace(" ", "_")) for s in systems for kind in KINDS]
    runs = {s.name: {run.kind: run for run in waiting if run.system is s} for s in systems}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    running: dict[TaskID, Run] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    run = waiting.pop(0)
                    run.start()
                    name = f"{run.system.name:18} {run.kind:11}"
                    running[progress.add_task(name, total=run.system.steps, state="starting")] = run
                for task in [task for task in running if advance(progress, task, running[task], console)]:
                    progress.remove_task(task)
                    del running[task]
                time.sleep(0.2)
        finally:
            for run in running.values():  # only after Ctrl-C or an error
                run.end()
    return runs


def advance(progress: Progress, task: TaskID, run: Run, console: Console) -> bool:
    """Show how far a run is; True when it is over."""
    over = run.is_over()  # asked before its log is read, which is whole then
    records = run.records()
    progress.update(task, completed=len(records), state=told(run, records) if records else "starting")
    if over:
        console.print(Text(f"{run.system.name:18} {run.kind:11} {len(records):3} steps, {ending(run)}"))
    return over


def told(run: Run, records: list[dict[str, Any]]) -> str:
    refused = sum(record.get("action", "none") not in ("none", "backoff") for record in records)
    return f"loss {float(records[-1]['loss']):.3g}" + (f", {refused} refused" if refused else "")


def ending(run: Run) -> str:
    value = f"{run.system.metric} {run.metric():.{run.system.digits}f}"
    if run.kind != "guarded":
        dead = not math.isfinite(float(run.records()[-1]["loss"]))
        return f"{'loss not finite, ' if dead else ''}{value}"
    counts = run.result()
    how = "stopped by its policy" if run.process and run.process.returncode else "through"
    return f"{how}: {counts['applied']} applied, {counts['skipped']} refused, {value}"


def incident_of(run: Run) -> Incident | None:
    """The first failure of a guarded run; None if it met none: on another machine sums round differently."""
    path = run.out / "incidents" / "0001" / "incident.json"
    return Incident.from_json(json.loads(path.read_text())) if path.is_file() else None


def what_happened(systems: list[System], runs: dict[str, dict[str, Run]]) -> Table:
    """The first bad step, counted from 1, its cause, and the updates that are in the final weights."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("system", "fails", "born at", "cause", "applied"):
        table.add_column(heading, no_wrap=heading != "born at", overflow="fold")
    for system in systems:
        run = runs[system.name]["guarded"]
        incident, counts = incident_of(run), run.result()
        birth = incident.birth if incident is not None else None
        stopped = run.process is not None and run.process.returncode == 1
        nothing = "unknown" if incident is not None else "-"
        table.add_row(
            system.name,
            str(incident.step + 1) if incident is not None else "not here",
            f"{Path(birth.file).name}:{birth.line}" if birth and birth.file else nothing,
            incident.findings[0].name if incident is not None and incident.findings else nothing,
            f"{counts['applied'] - counts['rolled_back']}/{counts['steps']}"
            + (" stopped" if stopped else ""),
        )
    return table


def metrics(systems: list[System], runs: dict[str, dict[str, Run]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("system", "metric", "start", *KINDS):
        table.add_column(heading, no_wrap=heading == "system")
    for system in systems:
        of = runs[system.name]
        start = float(json.loads(of["unguarded"].log.read_text().splitlines()[0])[system.metric])
        values = [f"{value:.{system.digits}f}" for value in (start, *(of[kind].metric() for kind in KINDS))]
        better = "higher" if system.more_is_better else "lower"
        table.add_row(system.name, f"{system.metric.replace('_', ' ')} ({better})", *values)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [system.name for system in SYSTEMS]
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=", ".join(names))
    parser.add_argument(
        "--out", type=Path, help="logs, incidents and checkpoints go here (default: runs/demo-TIME)"
    )
    options = parser.parse_args()
    unknown = [name for name in options.systems if name not in names]
    if unknown:
        parser.error(f"there is no system {unknown[0]!r}; choose from {', '.join(names)}")

    console = Console(highlight=False)
    chosen = options.systems
    if not chosen:
        first_act(console)
        measured = speed()
        slow = measured < SLOW
        chosen = [QUICKEST] if slow else names
        which = (
            f"too slow for all five in time, so {QUICKEST} alone"
            if slow
            else "all five systems, a few minutes"
        )
        console.print(
            Text(f"One thread of this machine makes {measured:.0f} GFLOP/s: {which} (SYSTEM=name for one).")
        )
    systems = [system for system in SYSTEMS if system.name in chosen]
    out = (options.out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    taken = [out / name for name in chosen if (out / name).exists()]
    if taken:
        parser.error(f"{taken[0]} is there already; give --out a new folder")
    started = time.perf_counter()
    runs = train_all(systems, out, console)
    os.chdir(HERE)
    for system in systems:
        console.rule(f"{system.name}: the diagnosis of the guarded run")
        incident = incident_of(runs[system.name]["guarded"])
        if incident is None:
            console.print(
                Text("This machine's rounding kept the run finite within its steps; nothing was refused.")
            )
            continue
        for line in report_of(incident):
            console.print(line)
    console.rule("in all")
    console.print(what_happened(systems, runs), metrics(systems, runs))
    console.print(
        Text(f"{time.perf_counter() - started:.0f} s; examples/<system>/README.md tells each story.")
    )
    console.print(Text(f"The logs, incidents and checkpoints of every run are in {out}."))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
