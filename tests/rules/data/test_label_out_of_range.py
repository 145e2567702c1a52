"""Without a trace the error's own text is what there is: advice fits what was looked up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place

LOOKUPS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "an embedding": (lambda: nn.Embedding(4, 2)(torch.tensor([9])), "num_embeddings"),
    "labels from 1": (
        lambda: nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([3])),
        "num_classes",
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_the_advice_fits_the_table(name: str) -> None:
    look_up, advice = LOOKUPS[name]
    with pytest.raises(IndexError) as raised:
        look_up()
    failure = Failure("IndexError", str(raised.value), Place("train.py", 7))
    first = next(iter(explain(FailedStep(0, "forward", "exception", failure=failure))))
    assert first.code == "DAT013" and advice in (first.fix or "") and first.line == 7
