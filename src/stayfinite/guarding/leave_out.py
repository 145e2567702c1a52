"""Doing without a bad loss component: when a step may be made again from its good ones alone."""

from __future__ import annotations

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt
from stayfinite.recover.ladder import Ladder


def can_do_without(refused: FailedStep, attempt: Attempt, ladder: Ladder) -> bool:
    """Some components are bad, others good, the sum is what is trained, and the policy allows it, for a while."""
    loss = attempt.window.losses[0] if attempt.window.losses else None
    return (
        ladder.policy.bad_component == "leave-out"
        and ladder.may_leave_out
        and refused.trigger == "loss"
        and loss is not None
        and loss.summed
        and 0 < len(refused.components) < len(loss.components)
        and not attempt.window.left_out
    )
