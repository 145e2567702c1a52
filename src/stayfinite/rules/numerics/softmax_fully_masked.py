"""NUM008: a softmax row in which everything is masked."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, told


class SoftmaxFullyMasked(Rule[FailedStep]):
    """A row that is minus infinity throughout went into a softmax or logsumexp.

    ## What it finds
    softmax, log_softmax and logsumexp (and the subtraction of the maximum in a softmax written by hand) with rows
    in which every entry is -inf, counted row by row. A row with at least one finite entry is never reported.

    ## Why it is bad
    The softmax of nothing is 0/0 = NaN. logsumexp is -inf in the forward pass, which may look right, and NaN in
    its gradient. In attention the NaN row spreads to all positions in the next layer.

    ## Example
    `nn.MultiheadAttention` with a `key_padding_mask` that is True for every key of one sample

    ## The fix
    Drop empty samples or unmask one dummy key of theirs; `F.scaled_dot_product_attention` with a boolean mask
    gives 0 for such rows. In dynamic programs use a finite log-zero such as -1e9.

    ## The popular fix that does not work
    Multiplying the output by the mask: NaN * 0 is NaN, in the gradient as well.

    ## References
    pytorch/pytorch#41508
    """

    code = "NUM008"
    name = "softmax-fully-masked"
    cause = "ATTN_FULLY_MASKED"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.SOFTMAX_EMPTY_ROW):
            total = born.birth.facts.get("rows")
            of = f" of {total}" if isinstance(total, int) else ""
            yield self.finding(
                f"{behind(born.birth)}: {counted(born.how.count, 'row')}{of} masked throughout (every entry is -inf)",
                fix="drop samples without a valid key or unmask one dummy key; F.scaled_dot_product_attention "
                "with a boolean mask gives 0 there",
                **told(born, "fully_masked_rows", "rows"),
            )
