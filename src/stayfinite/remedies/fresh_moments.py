"""Moments that are not finite begin anew, before an update is made of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.around_updates import around_updates
from stayfinite.remedies.remedy import Case, Remedy


class FreshMoments(Remedy):
    """The optimizer's state of a parameter is dropped if it holds NaN or Inf; every other one stays."""

    name = "fresh-moments"
    sentence = "begin the optimizer's moments anew where they are not finite (or take them from a good copy)"
    kinds = frozenset({Kind.CAME_IN})
    of_updates, rank = True, 3
    universal = True  # whatever made them bad

    def fits(self, case: Case) -> bool:
        """They came in bad, and the update is the first to read them."""
        return case.kind in self.kinds and (case.how.word == "state" or case.step.phase == "optimizer")

    def applied(self) -> AbstractContextManager[None]:
        return around_updates(before=_begin_anew)


def _begin_anew(optimizer: Any) -> None:
    import torch

    for state in optimizer.state.values():
        held = [one for one in state.values() if isinstance(one, torch.Tensor) and one.is_floating_point()]
        if not all(bool(torch.isfinite(one).all()) for one in held):
            state.clear()
