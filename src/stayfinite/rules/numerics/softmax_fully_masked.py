"""NUM008: a softmax row in which everything is masked."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import at, behind, births_by_weight, counted, facts, tensors

_NORMALISERS = ("softmax", "log_softmax", "logsumexp", "logaddexp", "logcumsumexp", "safe_softmax",
                "scaled_dot_product_attention", "scaled_dot_product_attention_math",
                "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_efficient_attention",
                "transformer_encoder_layer_fwd", "native_multi_head_attention")  # fmt: skip


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
        for birth, weight in births_by_weight(subject):
            rows = _masked_rows(birth)
            if not rows:
                continue
            total = birth.facts.get("rows")
            of = f" of {total}" if isinstance(total, int) else ""
            yield self.finding(
                f"{behind(birth)}: {counted(rows, 'row')}{of} masked throughout (every entry is -inf)",
                fix="drop samples without a valid key or unmask one dummy key; F.scaled_dot_product_attention "
                "with a boolean mask gives 0 there",
                evidence={"inputs": tensors(*birth.operands), **facts(birth, "fully_masked_rows", "rows")},
                confidence=0.96 * weight,
                **at(birth),
            )


def _masked_rows(birth: TracedBirth) -> int:
    op = behind(birth)
    if op in _NORMALISERS:
        if birth.fact("fully_masked_rows"):
            return int(birth.fact("fully_masked_rows"))
        result = birth.saved_tensor("result") if birth.phase == "backward" else None
        return result.neginf if result is not None and op in ("logsumexp", "logaddexp") else 0
    if op == "sub" and birth.transition == "inf->nan":
        scores, top = birth.operand("self"), birth.operand("other")
        if scores is not None and top is not None and scores.neginf and top.neginf:
            return top.neginf if top.made_by("amax", "max", "logsumexp", within=3) else 0
    return 0
