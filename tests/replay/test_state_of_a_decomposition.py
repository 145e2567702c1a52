"""An error of a decomposition began where its matrix became NaN; one of a finite matrix is that matrix's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stayfinite.findings.subjects.failed_step import Failure
from stayfinite.findings.subjects.run_record import Place
from stayfinite.replay import Tracer


def _of_nan() -> None:
    rows = torch.tensor([[2.0, 3.0], [0.0, 0.0]])
    unit = rows / rows.norm(dim=1, keepdim=True)
    torch.linalg.cholesky(unit.T @ unit + torch.eye(2))


def _of_an_inverse() -> None:
    rows = torch.tensor([[2.0, 3.0], [0.0, 0.0]])
    unit = rows / rows.norm(dim=1, keepdim=True)
    torch.linalg.cholesky(torch.linalg.inv(unit.T @ unit + torch.eye(2)))


def _of_numbers() -> None:
    torch.linalg.cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


def _nan_elsewhere() -> None:
    torch.zeros(1) / torch.zeros(1)
    torch.linalg.cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize(
    ("work", "op"),
    [
        (_of_nan, "div"),
        (_of_an_inverse, "div"),
        (_of_numbers, "linalg_check_errors"),
        (_nan_elsewhere, "linalg_check_errors"),
    ],
    ids=["of NaN", "of the inverse of NaN", "of numbers", "NaN elsewhere"],
)
def test_where_it_began(work: Callable[[], None], op: str) -> None:
    with Tracer() as trace:
        with pytest.raises(torch.linalg.LinAlgError) as caught:
            work()
        failure = Failure("LinAlgError", str(caught.value), Place())
        step = trace.failure_of(failure, trace.follower.noticed.raised[-1])
    assert step is not None and step.birth is not None and step.birth.op == op
