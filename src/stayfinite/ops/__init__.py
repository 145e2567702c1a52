"""Numerically stable, differentiable functions. They need torch and nothing else of this package."""

from stayfinite.ops.clip import ClipResult, clip_grad_norm
from stayfinite.ops.cross_entropy import masked_cross_entropy
from stayfinite.ops.distill import kd_loss
from stayfinite.ops.elementary import log1mexp, safe_div, safe_log, safe_pow, safe_sqrt
from stayfinite.ops.eps import tiny
from stayfinite.ops.mutual_information import beta_mutual_information
from stayfinite.ops.norm import normalize, rms_norm, safe_norm
from stayfinite.ops.reduce import masked_log_softmax, masked_mean, masked_softmax
from stayfinite.ops.sinkhorn import log_sinkhorn, sinkhorn
from stayfinite.ops.weights import normalize_weights

__all__ = [
    "ClipResult",
    "beta_mutual_information",
    "clip_grad_norm",
    "kd_loss",
    "log1mexp",
    "log_sinkhorn",
    "masked_cross_entropy",
    "masked_log_softmax",
    "masked_mean",
    "masked_softmax",
    "normalize",
    "normalize_weights",
    "rms_norm",
    "safe_div",
    "safe_log",
    "safe_norm",
    "safe_pow",
    "safe_sqrt",
    "sinkhorn",
    "tiny",
]
