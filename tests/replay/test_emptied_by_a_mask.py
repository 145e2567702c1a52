"""An error for want of elements, whose mask compared NaN, began where the NaN did; other empty ones are their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stayfinite.findings.subjects.failed_step import Failure
from stayfinite.findings.subjects.run_record import Place
from stayfinite.replay import Tracer


def _of_nan() -> None:
    x = torch.tensor([[2.0, 3.0]])
    x = (x - x.mean(0)) / (x - x)
    inside = (x >= -1) & (x <= 1)
    chosen = x[inside] * 2
    chosen.min()


def _of_numbers() -> None:
    x = torch.tensor([[2.0, 3.0]])
    inside = (x >= -1) & (x <= 1)
    x[inside].min()


def _nan_elsewhere() -> None:
    x = torch.tensor([[2.0, 3.0]])
    torch.zeros(1) / torch.zeros(1)
    x[x <= 1].min()


@pytest.mark.parametrize(
    ("work", "op"),
    [(_of_nan, "div"), (_of_numbers, "min"), (_nan_elsewhere, "min")],
    ids=["of NaN", "of numbers", "NaN elsewhere"],
)
def test_where_it_began(work: Callable[[], None], op: str) -> None:
    with Tracer() as trace:
        with pytest.raises(RuntimeError, match="numel") as caught:
            work()
        failure = Failure("RuntimeError", str(caught.value), Place())
        step = trace.failure_of(failure, trace.follower.noticed.raised[-1])
    assert step is not None and step.birth is not None and step.birth.op == op
