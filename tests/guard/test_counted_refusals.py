"""Refusals that are told in one line: the numbers in it are those of the first, and the line says so."""

from __future__ import annotations

from stayfinite.guarding.reporter import _Streak


def test_numbers_that_vary_are_said_to_be_those_of_the_first() -> None:
    same, varies = (_Streak("the update made a, b and 30 more non-finite", [4]) for _ in range(2))
    same.add(same.what, 5)
    varies.add("the update made a, b and 31 more non-finite", 5)
    assert str(same) == "steps 4 to 5: the update made a, b and 30 more non-finite; 2 updates not applied"
    assert "30 more non-finite (at the first of them); 2 updates not applied" in str(varies)


def test_healthy_steps_in_between_are_not_called_refused() -> None:
    few, many = _Streak("the loss is nan", [7]), _Streak("the loss is nan", [7])
    few.add("the loss is nan", 10)
    for step in (9, 12, 13, 15):
        many.add("the loss is nan", step)
    assert str(few) == "steps 7 and 10: the loss is nan; 2 updates not applied"
    assert str(many) == "5 of the steps 7 to 15: the loss is nan; 5 updates not applied"
