"""One random schedule of a training on several ranks: how it is parallel, guarded, and what goes wrong where."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

STEPS = 12
KINDS = (
    "none",
    "nan-loss",
    "inf-loss",
    "nan-input",
    "nan-gradient",
    "rank-parameter",
    "moment",
    "no-gradient",
)


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """`faults`: (step, rank) of every fault; a rank of -1 means all of them."""

    parallel: str = "ddp"  # ddp, plain, shard
    kind: str = "none"
    faults: tuple[tuple[int, int], ...] = ()
    way: str = "step"  # step, watch
    accumulate: int = 1
    policy: str = "default"  # default, skip, stop
    uneven: str = "none"  # none, join, observe
    late_rank: int = -1  # sleeps before some steps

    @property
    def joins(self) -> bool:
        return self.uneven == "join"


KNOWN = {
    # What once went wrong: some ranks repeated a step and others did not; DDP's notes of unused parameters after a
    # replay; a rank without gradients.
    10_000: RankSchedule("plain", "nan-loss", ((6, 1), (7, 1), (9, 1)), "watch", policy="skip"),
    10_001: RankSchedule("ddp", "rank-parameter", ((1, -1),), "step"),
    10_002: RankSchedule("plain", "no-gradient", ((4, 1),), "watch"),
}
"""Schedules that are tried by their number."""


def draw(seed: int, number: int, ranks: int) -> RankSchedule:
    """The schedule with this number; the same on every rank."""
    if number in KNOWN:
        return KNOWN[number]
    dice = random.Random(1_000_003 * seed + 31 * number + ranks)
    parallel = dice.choice(("ddp", "ddp", "plain", "shard"))
    if parallel == "shard" and not hasattr(torch.cpu.Stream, "record_event"):
        parallel = "ddp"  # torch 2.6 cannot shard on the CPU
    kind = dice.choice(KINDS)
    uneven = dice.choice(("none", "none", "observe", "join"))
    if parallel != "ddp" and (uneven == "join" or kind == "rank-parameter"):
        uneven, kind = "none", "nan-loss" if kind == "rank-parameter" else kind
    if kind == "no-gradient" and parallel != "plain":
        kind = "none"
    first = dice.randrange(STEPS)
    count = dice.choice((1, 1, 1, 2, 3, 11))
    where = dice.choice(("one", "one", "all", "different"))
    one = dice.randrange(ranks)
    in_a_row = range(first, min(STEPS, first + count))
    steps = in_a_row if count > 3 else sorted({dice.randrange(STEPS) for _ in range(count)})
    faults = [
        (step, -1 if where == "all" else one if where == "one" else dice.randrange(ranks)) for step in steps
    ]
    if kind in ("none", "moment", "no-gradient"):
        faults = [] if kind == "none" else [(first, one)]
    return RankSchedule(
        parallel=parallel,
        kind=kind,
        faults=tuple(faults),
        way="watch"
        if parallel == "plain"
        else dice.choice(("step", "watch")),  # the script averages for itself
        accumulate=1 if uneven == "join" else dice.choice((1, 1, 2, 3)),
        policy=dice.choice(("default", "default", "skip", "stop")),
        uneven=uneven,
        late_rank=dice.choice((-1, -1, one)),
    )
