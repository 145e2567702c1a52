"""Random scripts under `stayfinite run`: with a bad batch they must end in the bits of python alone without it.

    python bench/run_campaign.py --trials 300 --seed 1      exit code 1 if any differs
    python bench/run_campaign.py --seed 1 --only 17         one of them again: its script and what differs

A trial is a script of its own (bench/trials/scripts.py): model x optimizer x way to write the loop x way to call the
step x schedule x clipping x accumulation x average x scaler x fault. Where a script has a GradScaler, which skips for
itself, the reference is python alone with the bad batch. Each trial runs in two forked processes. What the report says
of it (the first step that failed, how many updates were applied and skipped) must be what the script was made to do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from forking import load
from rich.console import Console
from rich.progress import Progress
from trials.bits import bits, differing, finite
from trials.scripts import UPDATES, Script, draw, simpler, source

from stayfinite.findings import Incident
from stayfinite.launch import Options, run

LIMIT = 120.0  # seconds

FOUND = (
    Script(model="spectral norm", loop="while", call="gan", fault="inf batch", at=(7,), seed=148),
    Script(model="recurrent", loop="while", call="two optimizers", fault="nan batch", at=(11,), seed=733),
    Script(model="recurrent", call="gan", fault="nan batch", at=(9,), seed=757),
    Script(model="dropout", call="gan", fault="nan loss", at=(8,), seed=12),
    Script(
        optimizer="lbfgs", call="step(closure)", schedule="lambda", fault="nan gradient", at=(3, 6), seed=563
    ),
    Script(optimizer="lbfgs", call="step(closure)", fault="nan batch", at=(0,)),
    Script(model="dropout", call="bound", fault="inf batch", at=(1, 2), seed=396),
    Script(schedule="lambda", fault="nan gradient", at=(11,), seed=445),
    Script(schedule="epoch", average="averaged model", fault="nan batch", at=(2, 11)),
    Script(optimizer="adamw fused", zero="in place", scaler="scaler", fault="all bad", at=(3, 4), seed=51),
    Script(loop="next", schedule="lambda", average="averaged model", fault="nan batch", at=(6, 11), seed=684),
    Script(call="over batches", schedule="epoch", fault="all bad", at=(3, 5), seed=358),
)
"""Trials that differed once; they are tried first."""


def note(saved: Path, incidents: Sequence[Incident], remarks: Sequence[str]) -> None:
    said = {"steps": [incident.step for incident in incidents], "remarks": list(remarks)}
    saved.with_suffix(".json").write_text(json.dumps(said), encoding="utf-8")


def misreported(script: Script, saved: Path) -> list[str]:
    """What the report says that is not so: the step, the updates that were applied and skipped."""
    if script.scaler != "none" or script.fault == "none":
        return []
    file = saved.with_suffix(".json")
    if not file.exists():
        return ["reported: nothing"]
    said = json.loads(file.read_text(encoding="utf-8"))
    counts = re.search(r"Applied (\d+), skipped (\d+)", " ".join(said["remarks"]))
    each = 2 if script.call == "gan" else 1  # updates a batch: the bad one is in both
    updates = UPDATES // 2 if script.call == "over batches" else UPDATES * each
    skipped = len(script.at) * each
    asked = ((updates - skipped, skipped), [script.at[0] * each])
    got = (tuple(map(int, counts.groups())) if counts else None, said["steps"][:1])
    return [] if got == asked else [f"reported: {got} in place of {asked}"]


def forked(script: Path, saved: Path, *, guarded: bool) -> str | None:
    """Run it in a process of its own; gives what went wrong."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            log = os.open(saved.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(script.parent)
            if guarded:
                options = Options(str(script), (str(saved),), locate="off", prove=False)
                run(options, lambda incidents, remarks, files: note(saved, incidents, remarks))
            else:
                sys.argv = [str(script), str(saved)]
                runpy.run_path(str(script), run_name="__main__")
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on in its parent's place
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.kill(os.getpid(), 9) if code == 0 and saved.exists() else os._exit(code)
    end = time.monotonic() + LIMIT
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "it hangs"
        time.sleep(0.005)
    if saved.exists():
        return None
    return saved.with_suffix(".log").read_text(encoding="utf-8").strip().rpartition("\n")[2] or "no result"


def differences(script: Script) -> list[str]:
    """What the guarded run ends with that the reference does not."""
    with tempfile.TemporaryDirectory() as folder:
        found: list[dict[str, Any]] = []
        for guarded in (False, True):
            without = not guarded and script.scaler == "none"
            path = Path(folder) / f"train_{guarded}.py"
            path.write_text(source(script, without=without), encoding="utf-8")
            saved = Path(folder) / f"end_{guarded}.pt"
            wrong = forked(path, saved, guarded=guarded)
            if wrong is not None:
                return [f"raised {'guarded' if guarded else 'plain'}: {wrong}"]
            loaded = torch.load(saved, weights_only=False)
            found.append(bits(generators=False, **loaded))
            told = misreported(script, saved) if guarded else []
            if not guarded and not finite(found[0]):
                return []  # it fails by itself, also without the bad batch: there is nothing to compare with
    differ = differing(*found)
    if script.scaler != "none" and script.fault != "none":
        # python alone keeps what a step that its scaler skipped did to buffers; the guard puts it back
        differ = [name for name in differ if not name.endswith(("seen", "_mean", "_var", "_tracked"))]
    return differ + told


def shrunk(script: Script) -> tuple[Script, list[str]]:
    """The simplest script near this one that still differs."""
    found, again = differences(script), True
    while again:
        again = False
        for less in simpler(script):
            told = differences(less)
            if told and told[0].split(":")[0] == found[0].split(":")[0]:
                script, found, again = less, told, True
                break
    return script, found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this trial alone, with its script")
    asked = parser.parse_args()
    load()
    console = Console()
    numbers = [asked.only] if asked.only is not None else range(asked.trials)
    drawn = [(str(number), draw(random.Random(f"{asked.seed}-{number}"))) for number in numbers]
    if asked.only is None:
        drawn = [(f"of those found, {number}", script) for number, script in enumerate(FOUND)] + drawn
    failed = 0
    with Progress(console=console) as progress:
        for number, script in progress.track(drawn, description="trials"):
            found = differences(script)
            if found:
                failed += 1
                least, how = shrunk(script)
                console.print(
                    f"trial {number}: {', '.join(how[:4])}{' ...' if len(how) > 4 else ''}\n  {least}"
                )
                if asked.only is not None:
                    console.print(source(least, without=False), markup=False)
    console.print(f"{failed} of {len(drawn)} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
