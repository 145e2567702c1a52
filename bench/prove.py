"""How much of a set of failing scripts is cured, and what a proof costs: `python bench/prove.py [FOLDER]`.

FOLDER holds scripts that end with `bad == True`. Each is proved as `stayfinite run` does it (one process for all, so
that torch is imported once); the patched script must then run by python alone and end with `bad == False`.
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
from pathlib import Path

import torch
import torch._dynamo

from stayfinite.findings.rule import all_rules
from stayfinite.findings.trial import ProofReport
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove.counterfactual import Counterfactual
from stayfinite.prove.patching import apply

_ENDS = "import runpy, sys; print('bad' if runpy.run_path(sys.argv[1]).get('bad') else 'clean')"


def proof_of(script: Path, seconds: float = 90.0) -> ProofReport:
    """What `stayfinite run` would prove, without the sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        Beginning().save(state)
        options = Options(str(script))
        return Counterfactual(lambda plan, left: run_trial(options, state, plan, left), seconds).report()


def patched_runs(script: Path, patch: str) -> str:
    """How the patched script ends by python alone: clean, bad, or an error."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.name
        copy.write_text(script.read_text())
        for one in apply(patch, copy):
            copy.write_text(one.after)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ENDS, str(copy)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.split()
        return lines[-1] if done.returncode == 0 and lines else "error"


def table_of(folder: Path) -> None:
    """One line a script."""
    truth = folder / "truth.jsonl"
    known = (
        {one["id"]: one for one in map(json.loads, truth.read_text().splitlines())} if truth.exists() else {}
    )
    scripts = [path for path in sorted(folder.glob("*.py")) if not path.name.endswith(".fixed.py")]
    all_rules()
    gc.freeze()
    quiet = os.open(os.devnull, os.O_WRONLY)
    counted = proved = patched = 0
    for script in scripts:
        fact = known.get(script.stem, {})
        counts = fact.get("kind", "nonfinite") in ("nonfinite", "spike") and fact.get("birth_phase", "forward") in (
            "forward", "backward", "optimizer",
        )  # fmt: skip
        kept = os.dup(2)
        os.dup2(quiet, 2)
        report = proof_of(script)
        os.dup2(kept, 2)
        os.close(kept)
        ends = patched_runs(script, report.patch) if report.patch else "-"
        counted += counts
        proved += counts and report.proved is not None and not report.worthless
        patched += ends == "clean"
        name = report.proved.remedy if report.proved is not None else report.remark
        print(
            f"{'*' if counts else ' '} {script.stem:34s} {name:44.44s} {ends:6s} tried {len(report.tried)}",
            flush=True,
        )
    print(
        f"proved {proved} of {counted} with a birth in forward, backward or optimizer (*); patched and clean: {patched}"
    )


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
        table_of(Path(sys.argv[1]))
    else:
        cost()
