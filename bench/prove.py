"""How much of a set of failing scripts is cured, and what a proof costs: `python bench/prove.py [FOLDER]`.

FOLDER holds scripts that end with `bad == True`, and may hold truth.jsonl. Each is proved as `stayfinite run` does it
(one process for all, so that torch is imported once). Then, for every patch: the patched script must run by python
alone and end with `bad == False`; the generated test must fail without the patch and pass with it; and nothing may
move beyond rounding in a healthy twin of the script (bench/trials/healthy_twins.py).
Without FOLDER only the cost is measured: a training step of some size, and the median of the trials on it.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fresh_python
import torch
import torch._dynamo
from trials import healthy_twins
from trials.cures import is_of_the_kind

from stayfinite.findings.rule import all_rules
from stayfinite.findings.trial import ProofReport
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.script_capsule import facts_of
from stayfinite.launch.trial import run_trial
from stayfinite.prove.counterfactual import Counterfactual
from stayfinite.prove.patching import apply
from stayfinite.prove.written_test import test_of

_ENDS = """
import runpy, sys, warnings
warnings.simplefilter("ignore")
print("bad" if runpy.run_path(sys.argv[1]).get("bad") else "clean")
"""
_PHASES = ("forward", "backward", "optimizer")


def proof_of(script: Path, seconds: float = 90.0) -> ProofReport:
    """What `stayfinite run` would prove, without the sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        start = Beginning()
        start.save(state)
        options = Options(str(script))
        report = Counterfactual(lambda plan, left: run_trial(options, state, plan, left), seconds).report()
        if report.patch is not None and report.test is None:
            report.test = test_of(facts_of(options, start), "a bad value", report.line)
        return report


def patched_runs(script: Path, patch: str, run: fresh_python.Run = fresh_python.run) -> str:
    """How the patched script ends by python alone: clean, bad, or an error."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.name
        copy.write_text(script.read_text())
        for one in apply(patch, copy):
            copy.write_text(one.after)
        return ends(copy, run)


def ends(script: Path, run: fresh_python.Run = fresh_python.run) -> str:
    """How a script ends by python alone."""
    done = run([sys.executable, "-c", _ENDS, str(script)])
    lines = done.stdout.split()
    return lines[-1] if done.returncode == 0 and lines else "error"


def test_ends(test: Path) -> str:
    """How the generated test ends: passed, failed, or an error."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(test)],
        capture_output=True,
        check=False,
        cwd=test.parent,
    )
    return {0: "passed", 1: "failed"}.get(done.returncode, "error")


@dataclass(slots=True)
class PatchResult:
    """What the patch of one script is worth."""

    ends: str = "-"  # of the patched script
    test: str = "-"  # "ok": fails before and passes after
    moved: str = "-"  # of the healthy twin, in roundings
    moves: bool = False  # beyond rounding


def try_patch(script: Path, report: ProofReport) -> PatchResult:
    """`script` is a copy of its own: the patch and the test are about that very file."""
    if report.patch is None or report.test is None:
        return PatchResult()
    result = PatchResult()
    test = script.with_name("test_it.py")
    test.write_text(report.test)
    before, original = test_ends(test), script.read_text()
    patched = apply(report.patch)[0].after
    script.write_text(patched)
    after = test_ends(test)
    result.ends = ends(script)
    script.write_text(original)
    result.test = "ok" if (before, after) == ("failed", "passed") else f"{before}/{after}"
    moved = healthy_twins.moved(script, patched)
    if moved is not None:
        result.moves = moved[0] > healthy_twins.ROUNDING
        result.moved = f"{moved[0]:.1f}" + (f" ({moved[1]})" if result.moves else "")
    return result


def table_of(folder: Path, only: str = "") -> None:
    """One line a script, and what they sum up to."""
    truth = folder / "truth.jsonl"
    lines = truth.read_text().splitlines() if truth.exists() else []
    known: dict[str, dict[str, Any]] = {one["id"]: one for one in map(json.loads, lines)}
    scripts = [path for path in sorted(folder.glob("*.py")) if not path.name.endswith(".fixed.py")]
    all_rules()
    gc.freeze()
    count = dict.fromkeys(("counted", "proved", "kind", "patches", "clean", "tests", "twins", "moved"), 0)
    for script in [one for one in scripts if only in one.stem]:
        fact = known.get(script.stem, {})
        counts = (
            fact.get("kind", "nonfinite") in ("nonfinite", "spike")
            and fact.get("birth_phase", "forward") in _PHASES
        )
        with tempfile.TemporaryDirectory() as own:
            copy = Path(own) / script.name
            copy.write_text(script.read_text())
            report = _quietly(lambda copy=copy: proof_of(copy))
            patch = try_patch(copy, report)
        worth = report.proved is not None and not report.worthless
        name = report.proved.remedy if report.proved is not None else report.remark
        of_kind = worth and bool(fact) and is_of_the_kind(name, fact, report.line)
        count["counted"] += counts
        count["proved"] += counts and worth
        count["kind"] += counts and of_kind
        count["patches"] += report.patch is not None
        count["clean"] += patch.ends == "clean"
        count["tests"] += patch.test == "ok"
        count["twins"] += patch.moved != "-"
        count["moved"] += patch.moves
        word = ("kind" if of_kind else "other") if worth and counts and fact else ""
        gradient = report.proved.gradient if report.proved is not None else None
        silent = "no gradient" if gradient is False else ""
        print(
            f"{'*' if counts else ' '} {script.stem:34s} {name:34.34s} {word:5s} {patch.ends:6s} {patch.test:6s} "
            f"{patch.moved:5s} tried {len(report.tried)} {silent}",
            flush=True,
        )
    print(
        f"with a birth in forward, backward or optimizer (*): proved {count['proved']} of {count['counted']}, of "
        f"the kind that the truth names {count['kind']} of {count['proved']}"
    )
    print(
        f"patches {count['patches']}: clean by python alone {count['clean']}, test fails before and passes after "
        f"{count['tests']}, healthy twins {count['twins']}, moved beyond rounding {count['moved']}"
    )


def _quietly(work: Callable[[], ProofReport]) -> ProofReport:
    """What failing scripts write to stderr is of no interest."""
    quiet, kept = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(quiet, 2)
    try:
        return work()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(quiet)


def cost() -> None:
    """A trial beside a plain step, in the fork of a training of some size."""
    os.environ.pop("STAYFINITE_PROVE", None)
    from stayfinite import Guard

    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    guard = Guard(model, optimizer, quiet=True, run_dir=tempfile.mkdtemp())
    plain = []
    for step in range(8):
        batch = torch.randn(512, 1024)
        if step == 7:
            batch[5] *= 1e6
        begun = time.perf_counter()
        result = guard.step(entropy, model, batch)
        plain.append(time.perf_counter() - begun)
        if result.incident is not None:
            one = statistics.median(plain[1:-1])
            each = [tried.seconds / one for tried in result.incident.tried if tried.seconds]
            print(
                f"a step takes {one:.2f} s; a candidate {statistics.median(each):.1f} step times at the median"
            )
            print(
                f"tried {len(each)}: " + ", ".join(f"{t.remedy} ({t.verdict})" for t in result.incident.tried)
            )


def entropy(model: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(model(batch), -1)
    return -(p * torch.log(p)).sum(-1).mean()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        table_of(Path(sys.argv[1]), *sys.argv[2:3])
    else:
        cost()
