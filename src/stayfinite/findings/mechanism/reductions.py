"""Reductions and lookups: over nothing or one value, rows without an entry, targets and labels that do not fit."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth

_LOSSES = ("nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy", "cross_entropy_loss")
_SPREADS = ("std", "var", "std_mean", "var_mean", "native_batch_norm", "batch_norm", "cudnn_batch_norm",
            "native_batch_norm_legit", "cov", "corrcoef", "batch_norm_with_update")  # fmt: skip
_NORMALISERS = ("softmax", "log_softmax", "logsumexp", "logaddexp", "logcumsumexp", "safe_softmax",
                "scaled_dot_product_attention", "scaled_dot_product_attention_math",
                "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_efficient_attention",
                "transformer_encoder_layer_fwd", "native_multi_head_attention")  # fmt: skip
_INDEXED = (*_LOSSES, "embedding", "gather", "index_select", "one_hot", "scatter", "index", "embedding_bag",
            "binary_cross_entropy", "take_along_dim", "ctc_loss", "multi_margin_loss", "nll_loss_2d",
            "multilabel_margin_loss")  # fmt: skip
_LABELLED = (
    "nll_loss",
    "nll_loss2d",
    "cross_entropy",
    "cross_entropy_loss",
    "one_hot",
    "binary_cross_entropy",
)
_DECOMPOSITIONS = ("svd", "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_qr", "linalg_cholesky",
                   "linalg_cholesky_ex", "linalg_check_errors",
                   "linalg_inv", "linalg_inv_ex", "inverse", "linalg_solve", "linalg_solve_ex", "linalg_lstsq",
                   "linalg_det", "linalg_slogdet", "cholesky", "linalg_pinv", "linalg_lu_factor_ex", "symeig",
                   "linalg_eigvalsh", "linalg_svdvals", "logdet", "slogdet", "det", "lu_solve",
                   "linalg_lu_solve", "cholesky_solve", "cholesky_inverse", "linalg_solve_triangular",
                   "triangular_solve", "linalg_matrix_exp", "linalg_ldl_factor_ex")  # fmt: skip


def ctc(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Targets that need more frames than there are."""
    infeasible = int(birth.fact("infeasible"))
    if "ctc_loss" not in behind(birth) or not infeasible:
        return None
    return Mechanism(Kind.CTC_INFEASIBLE, count=infeasible)


def index(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Labels or indices outside of their range."""
    invalid = int(birth.fact("invalid"))
    if behind(birth) not in _INDEXED or not invalid:
        return None
    return Mechanism(
        Kind.INDEX_INVALID, count=invalid, word="labels" if behind(birth) in _LABELLED else "indices"
    )


def spread(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A deviation of not more values than its correction."""
    n, correction = birth.facts.get("n"), birth.facts.get("correction", 1)
    if behind(birth) not in _SPREADS or not isinstance(n, (int, float)):
        return None
    if not isinstance(correction, (int, float)) or n > correction or (n == 0 and birth.facts.get("empty")):
        return None
    return Mechanism(Kind.SPREAD_OF_ONE, count=int(n), more={"correction": int(correction)})


def masked_rows(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Rows that are -inf throughout."""
    op, rows = behind(birth), 0
    if op in _NORMALISERS:
        rows = int(birth.fact("fully_masked_rows"))
        result = birth.saved_tensor("result") if birth.phase == "backward" else None
        if not rows and result is not None and op in ("logsumexp", "logaddexp"):
            rows = result.neginf
    elif op == "sub" and birth.transition == "inf->nan":
        scores, top = birth.operand("self"), birth.operand("other")
        if scores is not None and top is not None and scores.neginf:
            rows = top.neginf if top.made_by("amax", "max", "logsumexp", within=3) else 0
    return Mechanism(Kind.SOFTMAX_EMPTY_ROW, count=rows) if rows else None


def nothing(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A mean over no element, no valid label, or weights that sum to nothing."""
    loss = behind(birth) in _LOSSES
    if loss and "valid" in birth.facts and not birth.fact("valid"):
        return Mechanism(Kind.EMPTY_REDUCTION, word="labels")
    if loss and birth.facts.get("weight_sum") == 0.0:
        return Mechanism(Kind.EMPTY_REDUCTION, word="weights")
    # Whatever makes NaN of no elements at all is a mean of some kind.
    no_element = birth.birth.nan > 0 and any(o.numel == 0 for o in birth.operands)
    if birth.facts.get("empty") or no_element:
        return Mechanism(Kind.EMPTY_REDUCTION, birth.operands[0] if birth.operands else None, word="elements")
    return None


def decomposition(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A decomposition of a finite but degenerate matrix."""
    if behind(birth) not in _DECOMPOSITIONS or birth.transition == "inf->nan":
        return None
    if any(not operand.finite for operand in (*birth.operands, *birth.saved)):
        return None
    return Mechanism(Kind.DEGENERATE_DECOMPOSITION)
