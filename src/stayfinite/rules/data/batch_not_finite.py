"""DAT001: the batch itself holds NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Birth, Depth, Finding, Rule, Severity
from stayfinite.findings.incident import listed_samples
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.rules.evidence import judged, tensors, told, written_into_weights

_WORDS = {"batch": "the batch", "constant": "a tensor made of plain numbers"}
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
    Lowering the learning rate: the sample is as bad at any rate. `nan_to_num` on activations or on the loss: the
    gradient of what is bad before it is NaN all the same.

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
            if written_into_weights(subject, born) is not None:
                continue  # it is in the weights, and in no batch
            of_batch = _of_the_batch(subject, shown)
            if of_batch is not None and born.how.word == "batch":
                # What came in was perhaps a whole table, one sample, or one value that was written into it.
                told_of = of_batch.summary
                what, nan, inf = told_of.name, told_of.nan, told_of.inf
                among, at = of_batch.numel, of_batch.samples
            else:
                what = _what(shown, born.how.word)
                nan, inf, among, at = shown.nan, shown.inf, shown.numel, shown.samples
            samples = f" in samples [{listed_samples(at, 5)}]" if at else ""
            columns = int(born.birth.fact("bad_columns"))
            if columns:
                samples = f": {columns} of {int(born.birth.fact('columns'))} columns are NaN in every sample"
            yield self.finding(
                f"{what} holds {nan} NaN and {inf} Inf among {among} values{samples}",
                fix=_WHOLE_COLUMN if columns else _FIX,
                **told(
                    born,
                    name=of_batch.summary.name if of_batch else None,
                    samples=list(at),
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


def _of_the_batch(step: FailedStep, shown: Birth) -> Operand | None:
    """The bad tensor of the batch: of several the one that is what came in, else the first."""
    bad = [held for held in step.batch if not held.finite]
    same = (held for held in bad if (held.numel, held.summary.nan) == (shown.numel, shown.nan))
    return next(same, bad[0] if bad else None)
