"""Whether a proved remedy is of the kind that a truth names: what its `fix_summary` speaks of, in a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

NAMED: Final[dict[str, str]] = {
    "log space": r"logsigmoid|with_logits|logsumexp|log_softmax|log1mexp|softplus|log.space|\blog N\b",
    "floor": r"eps\b|floor|clamp",
    "guarded divisor": r"denominator|range is 0|guarded",
    "smoothed count": r"smooth|absent class",
    "float32": r"float\(\)|fp32|float32",
    "float32 optimizer": r"master weights|optimizer states?",
    "bounded gradient at zero": r"zero rows|larger eps",
    "replaced values": r"nan_to_num|zero-fill|replace NaN",
    "max subtracted": r"subtract .*max",
    "infeasible targets left out": r"feasib|zero_infinity",
    "empty rows filled": r"dummy key|unmask|empty samples",
    "one finite mask": r"boolean masks|one additive mask",
    "deviation of one": r"n<2|unbiased=False|drop_last",
    "inside of the domain": r"-1\+eps|inside the domain",
    "a guard that sees NaN": r"isfinite\(loss\)|skip the step",
    "first bad value": r"first non-finite",
    "rate": r"learning rate|warmup|\bLR\b",
    "poisoned state": r"resync|restore|re-run the init",
}
"""A kind of cure, and how truths speak of it."""

IS: Final[dict[str, tuple[str, ...]]] = {
    "autocast-bfloat16": ("float32",),
    "autocast-off": ("float32",),
    "bfloat16": ("float32", "float32 optimizer"),
    "bounded-exponent": (),
    "ctc-zero-infinity": ("infeasible targets left out",),
    "domain-margin": ("inside of the domain",),
    "double-where": ("replaced values",),
    "empty-rows": ("empty rows filled",),
    "eps-inside": ("floor",),
    "finite-mask": ("one finite mask",),
    "float32": ("float32", "float32 optimizer"),
    "float32-accumulator": ("float32",),
    "float32-operation": ("float32",),
    "guarded-division": ("guarded divisor",),
    "guarded-mean": ("guarded divisor",),
    "imputed": ("replaced values",),
    "log-eps": ("floor",),
    "log-floor": ("floor",),
    "log-space": ("log space",),
    "log-space-ratio": ("log space", "max subtracted"),
    "logits-to-loss": ("log space",),
    "master-weights": ("float32 optimizer",),
    "max-subtracted": ("max subtracted",),
    "normalize-eps": ("bounded gradient at zero",),
    "power-of-factors": ("log space", "floor"),
    "scale-floor": ("floor",),
    "seeing-guard": ("a guard that sees NaN",),
    "skipped-step": ("a guard that sees NaN",),
    "smoothed-count": ("smoothed count",),
    "spread-of-one": ("deviation of one",),
    "warm-up": ("rate",),
    "weighted-log": ("floor", "log space"),
    "fresh-moments": ("poisoned state",),
}
"""What each remedy is. A lower rate and clipping are of no kind: a truth about a rate means the schedule, not those."""


def kinds_named(fact: Mapping[str, Any]) -> set[str]:
    """The kinds of cure that a truth speaks of."""
    text = str(fact.get("fix_summary", ""))
    return {kind for kind, words in NAMED.items() if re.search(words, text, re.IGNORECASE)}


def is_of_the_kind(remedy: str, fact: Mapping[str, Any], line: int | None) -> bool:
    """Whether any part of a proved remedy is of a kind that the truth names. `line`: where it was applied."""
    named = kinds_named(fact)
    if "first bad value" in named:  # the cure is to go to the first bad value, whatever is done there
        return line in fact.get("birth_lines", ())
    return any(kind in named for part in remedy.split(" + ") for kind in IS.get(part, ()))
