"""The bar: a failing input in 80 % of the public cases that fail for some input only, and none in their twins."""

from __future__ import annotations

import statistics
import time

import pytest

from probe.public_cases import FOLDER, OPEN, factory
from stayfinite.findings.subjects.probed_model import SearchResult
from stayfinite.probe import examine_model

pytestmark = [
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared cases are not here"),
    pytest.mark.filterwarnings("ignore"),
]
BUDGET, BAR = 60.0, 0.8


def _search(name: str, budget: float, *, fixed: bool = False) -> SearchResult:
    (result,) = examine_model(factory(name, fixed=fixed), only=["search"], budget=budget).subject.searches
    return result


@pytest.mark.long
def test_a_failing_input_is_found_within_the_bar() -> None:
    found, seconds = {}, []
    for name in OPEN:
        start = time.perf_counter()
        result = _search(name, BUDGET)
        found[name] = result.counts
        seconds.append(time.perf_counter() - start)
    missed = [name for name, hit in found.items() if not hit]
    print(
        f"found {len(OPEN) - len(missed)} of {len(OPEN)}, median {statistics.median(seconds):.1f} s; {missed}"
    )
    assert len(OPEN) - len(missed) >= BAR * len(OPEN), missed


@pytest.mark.parametrize("name", [name for name, case in OPEN.items() if case.has_twin])
def test_the_repaired_script_has_none(name: str) -> None:
    result = _search(name, 0.2, fixed=True)
    assert not result.counts, f"{result.condition}: {result.what}"
