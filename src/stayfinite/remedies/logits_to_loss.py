"""The logarithm of a probability that another function made: computed from the logits, which the loss does not see."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import zeroed_by
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.remedies.kept_logarithms import KeptLogarithms
from stayfinite.remedies.log_space import LogSpace
from stayfinite.remedies.remedy import Case, Remedy

_MADE: Final = ("sigmoid", "softmax")
_NEAR: Final = 12
_LOGS: Final = ("log", "log2", "log10")


class LogitsToLoss(Remedy):
    """Probabilities keep their logarithm beside them, made of the logits; a logarithm that is taken later is that."""

    name = "logits-to-loss"
    sentence = (
        "give the loss the logits and compute the logarithm from them: logsigmoid, log_softmax, "
        "binary_cross_entropy_with_logits, cross_entropy"
    )
    kinds = frozenset({Kind.LOG_OF_ZERO, Kind.EPS_VANISHED, Kind.ZERO_TIMES_INF})
    rank = 3  # behind what is a patch
    universal = True  # where log space itself fits, it is the same cure in another form, and no control

    def fits(self, case: Case) -> bool:
        """A probability was rounded to 0 or 1, and where its logarithm is taken nothing is left to compute it from."""
        if case.kind not in self.kinds or not self.can_act(case):
            return False
        return case.site is None or not LogSpace().edits(case)

    def can_act(self, case: Case) -> bool:
        return case.op in _LOGS and any(_is_probability(operand) for operand in case.birth.operands)

    def applied(self) -> AbstractContextManager[None]:
        return KeptLogarithms()


def _is_probability(operand: Operand) -> bool:
    """As a sigmoid or softmax made it. What a mask has set to 0 since is meant to be 0, whatever the logits say."""
    made, masked = operand.made_by(*_MADE, within=_NEAR), zeroed_by(operand, within=_NEAR)
    return made is not None and (masked is None or masked.distance > made.distance)
