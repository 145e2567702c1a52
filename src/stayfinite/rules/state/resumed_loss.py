"""When the losses after a resume may be compared with those before the save."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stayfinite.findings.subjects.run_record import Resume, StepRecord

_FEWEST_BEFORE, _FEWEST_AFTER = 10, 5
_SAME_RATE = 1.5
_MATTERS = 1e-3  # of the first losses of the run: a jump below that is the noise of a fit that is done


def same_training(resume: Resume, first_steps: Sequence[StepRecord]) -> bool:
    """This run made the save, with an optimizer of the same kind and shapes, and its rate goes on."""
    if not resume.saved.line or not resume.rate_saved or not resume.rate_used:
        return False
    if not 1 / _SAME_RATE <= resume.rate_used / resume.rate_saved <= _SAME_RATE:
        return False
    if len(resume.before) < _FEWEST_BEFORE or len(resume.after) < _FEWEST_AFTER:
        return False
    if min(*resume.before, *resume.after) <= 0:
        return False  # ratios of signed losses say nothing
    first = [record.loss for record in first_steps[:5] if record.loss is not None]
    return not first or median(resume.after) >= _MATTERS * median(first)
