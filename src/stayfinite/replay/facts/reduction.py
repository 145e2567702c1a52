"""Reductions: softmax rows without a valid entry, means over nothing, deviations of one value, norms of zero."""

from __future__ import annotations

import math

import torch

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.facts.call import Call, Measurement, count


def _masked_rows(call: Call) -> dict[str, Plain]:
    x = call.tensor("self", "input")
    if x is None or x.numel() == 0:
        return {}
    dims = call.dims(x.dim())
    all_masked = x == -math.inf
    for dim in sorted(dims, reverse=True):
        all_masked = all_masked.all(dim)
    return {"rows": all_masked.numel(), "fully_masked_rows": count(all_masked)}


def _spread(call: Call) -> dict[str, Plain]:
    x = call.tensor("self", "input")
    if x is None:
        return {}
    n = math.prod(x.shape[dim] for dim in call.dims(x.dim()))
    correction = call.number("correction")
    unbiased = call.scalars.get("unbiased")
    if correction is None:
        correction = 0.0 if unbiased is False else 1.0
    return {"n": n, "correction": correction}


def _empty(call: Call) -> dict[str, Plain]:
    x = call.tensor("self", "input")
    if x is None:
        return {}
    n = math.prod(x.shape[dim] for dim in call.dims(x.dim()))
    return {"n": n, "empty": n == 0}


def _vector_norm(call: Call) -> dict[str, Plain]:
    x = call.tensor("self", "input")
    if x is None or x.dim() == 0:
        return {}
    zero = x == 0
    for dim in sorted(call.dims(x.dim()), reverse=True):
        zero = zero.all(dim)
    return {"zero_rows": count(zero)}


def _batch_norm(call: Call) -> dict[str, Plain]:
    x = call.tensor("input")
    if x is None or x.dim() < 2:
        return {}
    facts: dict[str, Plain] = {"n": x.numel() // x.shape[1], "correction": 1.0}
    eps = call.number("eps")
    if eps is not None:
        facts["eps"] = eps
    variance = call.tensor("running_var")
    if variance is not None and not call.scalars.get(
        "training", False
    ):  # in training it is written, not read
        facts["outside"] = count(variance + (eps or 0.0) < 0)
    return facts


def _attention(call: Call) -> dict[str, Plain]:
    """A mask row that allows nothing; a bad value in a key or value that the mask hides."""
    facts: dict[str, Plain] = {}
    mask = call.tensors.get("attn_mask", call.tensors.get("attn_bias"))
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
        facts["fully_masked_rows"] = count(hidden.all(-1))
        facts["rows"] = hidden.all(-1).numel()
    bad = [
        name
        for name in ("query", "key", "value")
        if name in call.tensors and not bool(torch.isfinite(call.tensors[name]).all())
    ]
    facts["zero_times_bad"] = mask is not None and bool(bad)
    return facts


def _ctc(call: Call) -> dict[str, Plain]:
    targets = call.tensors.get("targets")
    inputs, lengths = _lengths(call, "input_lengths"), _lengths(call, "target_lengths")
    if targets is None or not inputs or not lengths:
        return {}
    needed, start = [], 0
    for sample, length in enumerate(lengths):
        if targets.dim() == 2:
            labels = targets[sample, :length]
        else:
            labels = targets[start : start + length]
            start += length
        repeats = count(labels[1:] == labels[:-1]) if length > 1 else 0
        needed.append(length + repeats)
    infeasible = [i for i, (have, need) in enumerate(zip(inputs, needed, strict=False)) if have < need]
    return {
        "input_lengths": tuple(inputs),
        "target_lengths": tuple(lengths),
        "needed": tuple(needed),
        "infeasible": len(infeasible),
    }


def _lengths(call: Call, name: str) -> list[int]:
    tensor = call.tensors.get(name)
    if tensor is not None:
        return [int(value) for value in tensor.flatten()[:64]]
    value = call.scalars.get(name)
    return [int(v) for v in value if isinstance(v, int)] if isinstance(value, tuple) else []


TABLE: dict[str, Measurement] = {
    "softmax": _masked_rows,
    "log_softmax": _masked_rows,
    "logsumexp": _masked_rows,
    "safe_softmax": _masked_rows,
    "std": _spread,
    "var": _spread,
    "std_mean": _spread,
    "var_mean": _spread,
    "mean": _empty,
    "sum": _empty,
    "amax": _empty,
    "amin": _empty,
    "median": _empty,
    "linalg_vector_norm": _vector_norm,
    "norm": _vector_norm,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_legit": _batch_norm,
    "native_batch_norm_legit_functional": _batch_norm,
    "native_batch_norm_legit_no_training": _batch_norm,
    "scaled_dot_product_attention": _attention,
    "scaled_dot_product_attention_math": _attention,
    "scaled_dot_product_flash_attention": _attention,
    "scaled_dot_product_flash_attention_for_cpu": _attention,
    "scaled_dot_product_efficient_attention": _attention,
    "ctc_loss": _ctc,
}
