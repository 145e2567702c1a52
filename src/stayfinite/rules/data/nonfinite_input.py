"""DAT010: a NaN or Inf that came in with the data."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import at, births_by_weight, tensors

_WRITTEN = (
    "lift_fresh",
    "full",
    "full_like",
    "new_full",
    "fill",
    "scalar_tensor",
    "constant",
    "outside",
    "masked_fill",
)


class NonfiniteInput(Rule[FailedStep]):
    """The bad value was not computed: it came in with the data.

    ## What it finds
    NaN or Inf in a tensor that a DataLoader handed out, that was read from a file or an array, or that the script
    wrote down as a literal, when it reaches the loss or a gradient.

    ## Why it is bad
    Every op on the way is right and the result is NaN. Missing values of a table, divisions in an earlier
    preparation and masked coordinates arrive this way.

    ## Example
    `torch.from_numpy(frame.values)` of a table with empty cells

    ## The fix
    Check with `torch.isfinite(x).all()` where samples are made; drop or impute the sample, and note its index.

    ## The popular fix that does not work
    A lower learning rate, or `nan_to_num` in the model: the sample comes back every epoch, now as a zero.

    ## References
    keras-team/keras#6921, ai2cm/ace#949
    """

    code = "DAT010"
    name = "nonfinite-input"
    cause = "DATA_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if birth.transition not in ("outside", "deliberate"):
                continue
            held = _bad_tensor(birth)
            origin = held.origin if held is not None else "outside"
            if origin in ("parameter", "buffer", "state", "gradient"):
                continue
            nan, inf = birth.birth.nan, birth.birth.inf
            in_batch = any(not tensor.finite for tensor in subject.batch)
            data = nan or in_batch or birth is subject.birth
            if birth.transition == "deliberate" and (birth.op not in _WRITTEN or not data):
                continue  # a mask of -inf is no data, unless nothing else explains the failure, or the batch has it
            origin = "batch" if in_batch else origin
            samples = f" in samples {list(birth.birth.samples[:5])}" if birth.birth.samples else ""
            yield self.finding(
                f"{_words(origin)} holds {nan} NaN and {inf} Inf among {birth.birth.numel} values{samples}",
                fix="check torch.isfinite where the samples are made; drop or impute the bad ones at their source",
                evidence={
                    "inputs": tensors(held),
                    "samples": list(birth.birth.samples),
                    "nan": nan,
                    "inf": inf,
                },
                confidence={"batch": 0.97, "outside": 0.8}.get(origin, 0.75) * weight,
                **at(birth),
            )
        if not subject.births and subject.trigger != "exception":
            for held in subject.batch:
                if not held.finite and not subject.complete:
                    yield self.finding(
                        f"the batch holds {held.summary.nan} NaN and {held.summary.inf} Inf in {held.summary.name}",
                        fix="check torch.isfinite where the samples are made; drop or impute the bad ones",
                        evidence={"inputs": tensors(held)},
                        confidence=0.7,
                    )


def _bad_tensor(birth: TracedBirth) -> Operand | None:
    return next((o for o in (birth.output, *birth.operands) if o is not None and not o.finite), None)


def _words(origin: str) -> str:
    known = {"batch": "the batch", "constant": "a tensor that the script wrote down"}
    return known.get(origin, "a tensor from outside")
