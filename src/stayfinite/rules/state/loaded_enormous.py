"""STA043: a loaded weight of absurd size."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.subjects.failed_step import FailedStep


class LoadedEnormous(Rule[FailedStep]):
    """The weights that were loaded hold a finite value of absurd size.

    ## What it finds
    `load_state_dict` of a model with a weight beyond 1e15, in a run that then fails where values are too large: an
    overflow, an exponential, a norm of finite gradients, a running variance.

    ## Why it is bad
    Such a weight is finite, so checks for NaN and Inf pass it. Its product with an ordinary activation leaves float32
    within a layer or two: the first loss is NaN whatever the data and the learning rate are.

    ## Example
    One flipped bit of the exponent in a copied file: 0.87 is then 2.9e+38

    ## The fix
    Load an earlier checkpoint, or a fresh copy of this one, that `stayfinite scan` calls healthy.

    ## The popular fix that does not work
    A lower learning rate, or clipping: no update has been made yet, or none that could bring such a weight back.

    ## References
    huggingface/transformers#45902
    """

    code = "STA043"
    name = "loaded-enormous"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = (
        "STA011", "STA027", "RUN010", "RUN001", "RUN019", "RUN020", "NUM025", "NUM021", "NUM016", "DAT011",
    )  # fmt: skip

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        too_large = bool(subject.judged) and subject.judged[0].how.kind in DEPENDS_ON_SIZE
        if not (too_large or subject.norm_overflowed):
            return
        for load in subject.run.loads:
            if not load.enormous or load.step > subject.step:
                continue
            name, size = max(load.enormous, key=lambda held: held[1])
            others = len(load.enormous) - 1
            yield self.finding(
                f"the {load.kind} state that was loaded holds a weight of {size:.3g} in {name}"
                + (f", and such weights in {others} more tensors" if others > 1 else "")
                + (", and one in another tensor" if others == 1 else ""),
                fix="load an earlier checkpoint, or a fresh copy of this one, that `stayfinite scan` calls healthy",
                evidence={"tensors": dict(load.enormous), "kind": load.kind},
                depth=Depth.UPSTREAM,
                place=load.place,
            )
