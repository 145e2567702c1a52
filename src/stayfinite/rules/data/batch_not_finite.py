"""DAT001: the batch itself holds NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from stayfinite.findings import Birth, Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, tensors, told

_WORDS = {"batch": "the batch", "constant": "a tensor that the script wrote down"}
_FIX = "check torch.isfinite where the samples are made; repair or drop the bad ones at their source"

_WHOLE_COLUMN = (
    "look at what computes the column, not at a sample: a running mean or deviation stays NaN once it has met an Inf, "
    "a deviation of 0 divides by nothing; leave such values out before statistics are made of them"
)


def _what(shown: Birth, word: str) -> str:
    """What came in, as far as is known."""
    if shown.op == "outside" and shown.call != shown.op:
        return f"what {shown.call} was given"
    return _WORDS.get(word, "a tensor from outside")


class BatchNotFinite(Rule[FailedStep]):
    """The batch of the refused step holds NaN or Inf.

    ## What it finds
    Non-finite values in the tensors of the batch that was given to the step, and, where the step was followed op by
    op, a NaN or Inf that was not computed but came in: from a DataLoader, from numpy, from a literal of the script.
    A mask of -inf counts only if nothing else explains the failure.

    ## Why it is bad
    Whatever the model does with them, the loss or a gradient is NaN. It is not the model's fault.

    ## Example
    A normalisation that divided a constant image by its range of zero; a missing value in a table read as NaN.

    ## The fix
    Find the sample (the evidence gives its index), repair the source or drop it in the data set, and check there.

    ## The popular fix that does not work
    Lowering the learning rate, or `nan_to_num` in the model: the value comes back whenever the sample is read again.

    ## References
    keras-team/keras#6921, albumentations-team/albumentations#1742
    """

    code = "DAT001"
    name = "batch-not-finite"
    cause = "DATA_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.CAME_IN):
            if born.how.word in ("parameter", "buffer", "state", "gradient"):
                continue
            shown = born.birth.birth
            loaded = [(load.place.file, load.place.line) for load in subject.run.loads if load.nonfinite]
            if (shown.file, shown.line) in loaded:
                continue  # it came in with a checkpoint, which is no batch
            samples = f" in samples [{shown.listed_samples(5)}]" if shown.samples else ""
            of_batch = next((held.summary for held in subject.batch if not held.finite), None)
            if of_batch is not None and born.how.word == "batch" and shown.numel != prod(of_batch.shape):
                # What came in was a whole table, or one value that was written into it.
                what, nan, inf, among = of_batch.name, of_batch.nan, of_batch.inf, prod(of_batch.shape)
            else:
                what = "the batch" if of_batch is not None else _what(shown, born.how.word)
                nan, inf, among = shown.nan, shown.inf, shown.numel
            columns = int(born.birth.fact("bad_columns"))
            if columns:
                samples = f": {columns} of {int(born.birth.fact('columns'))} columns are NaN in every sample"
            yield self.finding(
                f"{what} holds {nan} NaN and {inf} Inf among {among} values{samples}",
                fix=_WHOLE_COLUMN if columns else _FIX,
                **told(
                    born,
                    name=of_batch.name if of_batch else None,
                    samples=list(shown.samples),
                    nan=nan,
                    inf=inf,
                ),
            )
        if subject.births or subject.trigger == "exception" or subject.run.complete:
            return
        for held in subject.batch:
            if not held.finite:
                yield self.finding(
                    f"{held.summary.name} holds {held.summary.nan} NaN and {held.summary.inf} Inf",
                    fix=_FIX,
                    evidence={"inputs": tensors(held), **held.summary.to_json()},
                    depth=Depth.BIRTH,
                )
