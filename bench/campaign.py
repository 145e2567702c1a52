"""Random trials: a guarded training with a fault must end in the very bits of an unguarded one without it.

    python bench/campaign.py --trials 3000 --seed 1      all of them; exit code 1 if any differs
    python bench/campaign.py --seed 1 --only 17          one of them again, with all that differs

A trial is model x optimizer x schedule x scaler x accumulation x average x step or watch x sync x fault x resume
(bench/trials/tables.py). Weights, buffers, moments, step counts, schedules, averages, scaler, random generators,
learning rates and the counters of the record are compared bit for bit. A trial that differs is shrunk: every
dimension that is not needed for it to differ is set to its simplest value.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import fields, replace

import torch
from rich.console import Console
from rich.progress import Progress
from trials.tables import SIMPLER, Spec, draw, fitted
from trials.trial import differences

KEPT = ("fault", "place", "way", "sync", "resume", "resume_at")
"""What is dropped last when a trial is shrunk; the rest is tried at once, first."""
SHOWN = 4
"""Differences named in a line."""


def shrink(spec: Spec) -> tuple[Spec, list[str]]:
    """The simplest trial near this one that differs in the same way, and how it differs."""
    found, seen = differences(spec), {spec}
    again = bool(found)  # what does not differ every time (memory that nobody initialised) cannot be shrunk
    simple = {field.name: getattr(Spec(), field.name) for field in fields(spec)}
    setting = {name: value for name, value in simple.items() if name not in KEPT}
    while again:
        again = False
        one_by_one = [{name: value} for name, value in simple.items()]
        for change in [setting, *one_by_one, {"fault": SIMPLER.get(spec.fault, spec.fault)}]:
            simpler = fitted(replace(spec, **change))
            if simpler in seen:
                continue
            seen.add(simpler)
            less = differences(simpler)
            if kind(less) == kind(found):
                spec, found, again = simpler, less, True
    return spec, found


def kind(found: list[str]) -> str:
    """Bits, counts, or the error that was raised: a trial is not shrunk from one to another."""
    first = found[0] if found else "nothing differs"
    if first.startswith("raised"):
        return first.split(":")[0]
    return first.split(" ")[0] if " " in first else "bits"


def describe(found: list[str]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def campaign(trials: int, seed: int, console: Console) -> dict[str, list[int]]:
    """Shrunk description -> the trials that came down to it. Says each as soon as it is known."""
    classes: dict[str, list[int]] = defaultdict(list)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("trials", total=trials)
        for index in range(trials):
            if once := differences(draw(seed, index)):
                spec, found = shrink(draw(seed, index))
                found = found or ["not every time", *once]
                classes[str(spec)].append(index)
                repeat = f"python bench/campaign.py --seed {seed} --only {index}"
                console.print(
                    f"differs: {spec}: {describe(found)}  ({repeat})", highlight=False, soft_wrap=True
                )
            progress.update(task, advance=1)
    return classes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--only", type=int, metavar="INDEX", help="only the trial of this number, in full")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(stderr=False, emoji=False)
    if options.only is not None:
        spec = draw(options.seed, options.only)
        found = differences(spec)
        console.print(f"trial {options.only}: {spec}", highlight=False, soft_wrap=True)
        if found:
            console.print(f"shrunk: {shrink(spec)[0]}", highlight=False, soft_wrap=True)
        console.print("\n".join(found) or "no difference", highlight=False, soft_wrap=True)
        return 1 if found else 0
    classes = campaign(options.trials, options.seed, console)
    failed = sum(map(len, classes.values()))
    for name, indices in sorted(classes.items(), key=lambda item: -len(item[1])):
        console.print(f"{len(indices):5d}  {name}", highlight=False, soft_wrap=True)
    console.print(f"{failed} of {options.trials} trials differ (seed {options.seed})", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
