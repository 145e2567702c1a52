"""STA046: weights that were NaN or of absurd size before the first step, and that no load is known to have brought."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.setup import HeldTensor
from stayfinite.rules.evidence import told, written_into_weights

_FEW = 10  # one absurd value among as many others: damage, and no memory that nobody wrote
_FIX = (
    "look at what wrote these weights last: a file that the script reads by itself (take a sound copy, and check "
    "torch.isfinite there), an initialiser, or torch.empty"
)


class BeganWrong(Rule[FailedStep]):
    """Weights were wrong when the training began: NaN, Inf, or beyond 1e30.

    ## What it finds
    Parameters and buffers that were not finite, or absurd, before the first step, although neither `load_state_dict`
    nor a model in a `torch.load` brought them so, in a run that then fails by them: NaN that came in from outside, or
    values that are too large.

    ## Why it is bad
    The first loss is bad whatever the data and the learning rate are, and no update brings such a weight back.

    ## Example
    One NaN in a text file of word vectors; a reader of weights that begins a few bytes too early

    ## The fix
    Check what is read where it is read: `torch.isfinite(table).all()`, and the range of the values.

    ## The popular fix that does not work
    A lower learning rate, clipping, or another order of the samples: what is wrong is in the model before any of them.

    ## References
    huggingface/transformers#45902
    """

    code = "STA046"
    name = "began-wrong"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = (
        "STA011", "STA027", "RUN010", "RUN001", "RUN019", "RUN020", "NUM025", "NUM021", "NUM016", "DAT001", "DAT011",
    )  # fmt: skip

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        first = subject.judged[0] if subject.judged else None
        held = written_into_weights(subject, first) if first is not None else None
        if first is not None and held is not None:
            yield self.finding(
                f"{held.kind} {held.summary.name} held {held.summary.nan} NaN and {held.summary.inf} Inf before the "
                "first step",
                fix=_FIX,
                **told(first, tensor=held.summary.to_json()),
            )
            return
        too_large = first is not None and first.how.kind in DEPENDS_ON_SIZE
        if not (too_large or subject.norm_overflowed):
            return
        absurd = [held for held in subject.run.began if held.absurd and held.kind == "parameter"]
        for held in absurd[:1]:
            yield self.finding(
                f"parameter {held.summary.name} held {_size(held):.3g} before the first step"
                + (f", and {len(absurd) - 1} more held such values" if len(absurd) > 1 else ""),
                fix=_FIX,
                evidence={"tensors": [other.summary.to_json() for other in absurd[:8]]},
                cause=None if held.absurd * _FEW <= _elements(held) else "UNINITIALIZED_MEMORY",
                depth=Depth.UPSTREAM,
            )


def _size(held: HeldTensor) -> float:
    return max(abs(held.summary.min or 0.0), abs(held.summary.max or 0.0))


def _elements(held: HeldTensor) -> int:
    count = 1
    for size in held.summary.shape:
        count *= size
    return count
