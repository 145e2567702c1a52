"""Refusals that are told in one line: the numbers in it are those of the first, and the line says so."""

from __future__ import annotations

from stayfinite.guarding.reporter import _Streak


def test_numbers_that_vary_are_said_to_be_those_of_the_first() -> None:
    same, varies = (_Streak("the update made a, b and 30 more non-finite", 4, 4) for _ in range(2))
    same.add(same.what, 5)
    varies.add("the update made a, b and 31 more non-finite", 5)
    assert str(same) == "steps 4 to 5: the update made a, b and 30 more non-finite; 2 updates not applied"
    assert "30 more non-finite (at the first of them); 2 updates not applied" in str(varies)
