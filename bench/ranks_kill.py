"""Kill one of several ranks at a random moment, again and again: the others end in time, a restart has the same bits.

    python bench/ranks_kill.py --times 20 --seed 1          exit code 1 if one fails

Each time: a training on 4 ranks with a checkpoint every 4 steps; SIGKILL to a random rank at a random moment; the
others must end with a message within the time-out of their group; every checkpoint must be whole; a restart goes on
from the newest, and its weights are those of a training that nobody disturbed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials.killed_ranks import STEPS, TIMEOUT

from stayfinite.recover import checkpoint

SCRIPT = Path(__file__).with_name("trials") / "killed_ranks.py"
GRACE = 45.0
"""Seconds beyond the time-out that a busy machine may need to end a process."""


class Ranks:
    """Processes of one training, and what they say."""

    def __init__(self, ranks: int, folder: Path, attempt: int) -> None:
        store = folder / f"store-{attempt}"
        self._files = [folder / f"said-{attempt}-{rank}" for rank in range(ranks)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(rank), str(ranks), str(folder), str(store)],
                stdout=file.open("w"),
                stderr=subprocess.STDOUT,
            )
            for rank, file in enumerate(self._files)
        ]

    def said(self, rank: int) -> str:
        return self._files[rank].read_text(encoding="utf-8")

    def wait_for(self, text: str, rank: int, seconds: float = 120.0) -> bool:
        until = time.monotonic() + seconds
        while text not in self.said(rank):
            if time.monotonic() > until or self.processes[rank].poll() is not None:
                return False
            time.sleep(0.005)
        return True

    def end(self, seconds: float) -> list[int | None]:
        """Exit codes; None for one that had to be killed because it did not end in time."""
        until, codes = time.monotonic() + seconds, []
        for process in self.processes:
            try:
                codes.append(process.wait(timeout=max(0.1, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes.append(None)
        return codes


def undisturbed(ranks: int, folder: Path) -> str:
    """The weights that every other training must end with."""
    folder.mkdir()
    training = Ranks(ranks, folder, 0)
    codes = training.end(300)
    if codes != [0] * ranks:
        raise RuntimeError(f"the undisturbed training ended with {codes}: {training.said(0)[-500:]}")
    weights = {_weights(training.said(rank)) for rank in range(ranks)}
    if len(weights) != 1:
        raise RuntimeError(f"the ranks of the undisturbed training differ: {weights}")
    return weights.pop()


def once(ranks: int, folder: Path, expected: str, dice: random.Random) -> tuple[list[str], str]:
    """(what is not as it should be, what was done)"""
    folder.mkdir()
    victim, step, delay = dice.randrange(ranks), dice.randrange(STEPS - 4), dice.random() * 0.05
    what = f"rank {victim} killed {1000 * delay:.0f} ms after step {step} began"
    training = Ranks(ranks, folder, 0)
    if not training.wait_for(f"step {step}\n", victim):
        training.end(1)
        return [f"it never came to step {step}: {training.said(victim)[-300:]}"], what
    time.sleep(delay)
    training.processes[victim].kill()
    begun, wrong = time.monotonic(), []
    codes = training.end(TIMEOUT + GRACE)
    seconds = time.monotonic() - begun
    for rank, code in enumerate(codes):
        if rank == victim:
            continue
        if code is None:
            wrong.append(f"rank {rank} hangs: {training.said(rank).splitlines()[-1:]}")
        elif code == 0 or "rror" not in training.said(rank):
            wrong.append(f"rank {rank} ended with {code}, silently: {training.said(rank).splitlines()[-1:]}")
    files = sorted((folder / "run").rglob("step-*.pt"))
    for path in files:
        checkpoint.read(path)  # raises if it is not whole
    again = Ranks(ranks, folder, 1)
    codes = again.end(300)
    resumed = [line for line in again.said(0).splitlines() if line.startswith("resumed")]
    if codes != [0] * ranks:
        wrong.append(f"the restart ended with {codes}: {again.said(0)[-300:]}")
    elif {_weights(again.said(rank)) for rank in range(ranks)} != {expected}:
        wrong.append("the weights of the restart are not those of an undisturbed training")
    if files and (not resumed or "unreadable" in again.said(0)):
        wrong.append(f"the restart did not resume from {files[-1]}")
    return wrong, f"{what}; the others ended within {seconds:.1f} s; {(resumed or ['from the beginning'])[0]}"


def _weights(said: str) -> str:
    return next((line.split()[1] for line in said.splitlines() if line.startswith("weights ")), "none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    dice, failed = random.Random(asked.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        expected = undisturbed(asked.ranks, Path(scratch) / "undisturbed")
        for number in range(asked.times):
            wrong, what = once(asked.ranks, Path(scratch) / str(number), expected, dice)
            failed += bool(wrong)
            print(f"{number}: {what}" + (f"; FAILED: {'; '.join(wrong)}" if wrong else ""), flush=True)
    print(f"{asked.times} kills of one of {asked.ranks} ranks, {failed} failed, seed {asked.seed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
