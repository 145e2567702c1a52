"""The learning rate that was asked for, put back after a checkpoint has brought another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.remedies.remedy import Case, Remedy


class ReappliedRate(Remedy):
    """lr and initial_lr of every group as they were before `optimizer.load_state_dict`."""

    name = "reapplied-rate"
    sentence = "put the learning rate that you asked for back after loading the optimizer's state"
    kinds = DEPENDS_ON_SIZE
    trains_otherwise, of_updates, rank = True, True, 2
    universal = True  # no control for a rate

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and self.can_act(case)

    def can_act(self, case: Case) -> bool:
        """A load of this run has raised the rate."""
        return any(
            one.kind == "optimizer"
            and one.lr_before is not None
            and one.lr_after is not None
            and one.lr_after > one.lr_before
            for one in case.step.run.loads
        )

    def applied(self) -> AbstractContextManager[None]:
        return _rates_survive_loads()


@contextmanager
def _rates_survive_loads() -> Iterator[None]:
    from torch.optim import Optimizer

    load = Optimizer.load_state_dict

    def loaded(self: Any, state_dict: Any) -> None:
        asked = [{k: g[k] for k in ("lr", "initial_lr") if k in g} for g in self.param_groups]
        load(self, state_dict)
        for group, rates in zip(self.param_groups, asked, strict=False):
            group.update(rates)

    Optimizer.load_state_dict = loaded  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.load_state_dict = load  # type: ignore[method-assign]
