"""A larger eps in the optimizer: what is recommended for divisions by 0 in it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.around_updates import around_updates
from stayfinite.remedies.remedy import Remedy


class LargerEps(Remedy):
    """An eps of 1e-4 in the optimizer."""

    name = "larger-eps"
    sentence = "give the optimizer an eps of 1e-4"
    kinds = frozenset({Kind.HALF_UPDATE, Kind.OPTIMIZER_DIVISION})
    popular, trains_otherwise, of_updates, rank = True, True, True, 8

    def applied(self) -> AbstractContextManager[None]:
        return around_updates(before=_enlarge)


def _enlarge(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = max(group["eps"], 1e-4)
