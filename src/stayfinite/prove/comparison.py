"""What candidates say about each other: one that works shows what another one gives up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stayfinite.prove.attempted import Attempted
from stayfinite.prove.judgement import has_smooth_form, leaves_the_update
from stayfinite.remedies.measured_rate import MeasuredRate
from stayfinite.remedies.remedy import Case

NO_GRADIENT: Final = ("no gradient", "finite, but the failing sample gets no gradient any more")
"""The verdict on what takes the failing sample out of the training where that need not be, and why."""


def compare(done: Sequence[Attempted], case: Case) -> None:
    """Take the word proved from those that another one shows to be no cure."""
    _judge_gradients(done, case)
    _judge_updates(done, case)


def _judge_gradients(done: Sequence[Attempted], case: Case) -> None:
    """A remedy that cuts the failing sample off loses where another one lets it learn, or where one could: where the
    right form is smooth there, what cuts off must show that the sample still learns."""
    one_learns = any(one.learns and one.tried.proved for one in done)
    smooth = has_smooth_form(case)
    for one in done:
        cut = smooth and any(remedy.cuts_off for remedy in one.remedies) and not one.learns
        if one.tried.proved and not one.tried.control and (cut or (one_learns and one.learns is False)):
            verdict, reason = NO_GRADIENT
            one.tried = replace(one.tried, verdict=verdict, reason=reason)


def _judge_updates(done: Sequence[Attempted], case: Case) -> None:
    """Where the learning rate that an absurd update asks for cures, what leaves that update as it is does not."""
    if not any(one.tried.proved and MeasuredRate.name == one.tried.remedy for one in done):
        return
    for one in done:
        reason = leaves_the_update(case, one.remedies) if one.tried.proved else None
        if reason is not None and not one.tried.control:
            one.tried = replace(one.tried, verdict="unclear", reason=reason)
