"""Without a trace the error's own text is what there is: advice fits what was looked up. An index that was cast from a
NaN is none that was out of range: the NaN has a birth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from rules.watched import incidents_of
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place
from stayfinite.replay.measure import holds_casts_of_bad

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


CAST = """
    table = nn.Embedding(16, 4)
    opt = torch.optim.SGD(table.parameters(), 0.1)
    for step in range(4):
        depth = torch.full((6,), 8.0)
        if step == 2:
            depth[1] = WET
        level = ROOT
        loss = table(PLACE).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize("place", ["level.long()", "1 + (level * 2).int()[1:]"])
def test_an_index_that_was_cast_from_a_nan_has_the_birth_of_the_nan(place: str, tmp_path: Path) -> None:
    source = CAST.replace("WET", "-3.0").replace("ROOT", "depth.sqrt()").replace("PLACE", place)
    (incident,) = incidents_of(source, tmp_path)
    assert incident.birth is not None and incident.birth.source == "level = depth.sqrt()"
    codes = [finding.code for finding in incident.findings]
    assert "DAT013" not in codes and "NUM023" in codes[1:], codes
    assert incident.path[-1].op.startswith("aten.embedding")


@pytest.mark.parametrize("place", ["level.long()", "level.argmax()[None] + 16"])
def test_an_index_that_is_merely_too_large_is_told_as_one(place: str, tmp_path: Path) -> None:
    """Also where a NaN was about: the place of the largest is a legal index, and no NaN."""
    source = CAST.replace("WET", "40.0").replace("ROOT", "depth * 1.0").replace("PLACE", place)
    (incident,) = incidents_of(source, tmp_path)
    assert [finding.code for finding in incident.findings] == ["DAT013"]


def test_casts_of_what_is_not_finite_are_told_from_numbers() -> None:
    for dtype in (torch.int64, torch.int32):
        for value in (float("nan"), float("inf"), -float("inf")):
            cast = torch.tensor([1.0, value]).to(dtype)
            if cast[1] != 0:  # what it becomes is the processor's choice
                assert holds_casts_of_bad(cast)
        assert not holds_casts_of_bad(torch.tensor([-9999, 0, 2**30], dtype=dtype))
    assert not holds_casts_of_bad(torch.tensor([], dtype=torch.int64))
    assert not holds_casts_of_bad(torch.tensor([0, 255], dtype=torch.uint8))
