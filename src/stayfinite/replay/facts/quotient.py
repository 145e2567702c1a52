"""Quotients, products and sums: zero divisors, zero times Inf, Inf minus Inf, and what kind of thing divides."""

from __future__ import annotations

import torch

from stayfinite.findings.subjects.traced_birth import Plain, Producer
from stayfinite.replay.facts.call import Call, Measurement, count
from stayfinite.replay.facts.one_less import one_of

# Ops that keep the kind of a quantity: the divisor `mask.sum().clamp(min=0) + 0` is still a count.
_TRANSPARENT = {"add", "clamp", "clamp_min", "clamp_max", "to_copy", "mul", "neg", "abs", "maximum", "index",
                "gather", "clone", "where", "index_select", "nan_to_num", "squeeze", "unsqueeze", "copy"}  # fmt: skip
_COUNTS = {"bincount", "count_nonzero", "histc", "unique", "unique_consecutive", "numel"}
_EXTREMES = {"amax", "amin", "max", "min", "aminmax", "quantile", "kthvalue", "topk"}
_DEVIATIONS = {"std", "var", "std_mean", "var_mean"}
_NORMS = {"linalg_vector_norm", "norm", "frobenius_norm", "linalg_norm", "dist", "cdist"}
_PROBABILITIES = {"sigmoid", "softmax", "exp", "softplus", "tanh"}
_CONSTANTS = {
    "full", "zeros", "ones", "arange", "lift_fresh", "scalar_tensor", "zeros_like", "ones_like", "linspace",
}  # fmt: skip


def divisor_kind(producers: tuple[Producer, ...]) -> str:
    """What the divisor is, from the ops that made it."""
    names = [p.name for p in producers]
    for position, producer in enumerate(producers):
        name = producer.name
        if name in _COUNTS:
            return "count"
        if name in ("index_add", "scatter_add", "segment_reduce"):
            return "sum"
        if name in ("sum", "cumsum"):
            return _kind_of_sum(producer, producers[position + 1 :])
        if name == "sub" and any(later in _EXTREMES for later in names[position + 1 : position + 4]):
            return "range"
        if name == "sqrt" and any(
            later in ("var", "var_mean") for later in names[position + 1 : position + 4]
        ):
            return "std"
        if name == "sqrt" and "sum" in names[position + 1 : position + 4]:
            return "norm"
        if name in _DEVIATIONS:
            return "std"
        if name in _NORMS:
            return "norm"
        if name in _EXTREMES:
            return "max"
        if name == "mean":
            return "mean"
        if name in _PROBABILITIES:
            return "probability"
        if name in _CONSTANTS:
            return "constant"
        if name not in _TRANSPARENT:
            return "other"
    return "constant" if not producers else "other"


def _kind_of_sum(total: Producer, before: tuple[Producer, ...]) -> str:
    if any(dtype.startswith(("bool", "int", "uint")) for dtype in total.inputs):
        return "count"
    nearest = [p.name for p in before if p.distance == total.distance + 1]
    if total.absmax == 0.0 and all(
        name in _CONSTANTS | {"to_copy", "eq", "ne", "gt", "lt", "ge", "le"} for name in nearest
    ):
        return "count"
    flags = ("eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_not", "bitwise_and", "bitwise_not")
    if any(p.name in flags for p in before if p.distance <= total.distance + 3):
        return "count"
    return "sum"


def _divide(call: Call) -> dict[str, Plain]:
    top, bottom = call.tensor("self"), call.tensor("other")
    number = call.number("other")
    if bottom is None and number is not None:
        bottom = torch.tensor(number, dtype=torch.float64)
    if bottom is None:
        return {}
    facts = _zero_division(top, bottom, call.producers.get("other", ()))
    if bottom.dim() == 0 and facts["zero_divisors"] and facts["divisor_is"] == "constant":
        facts["one_of"] = one_of()
    return facts


def _reciprocal(call: Call) -> dict[str, Plain]:
    bottom = call.tensor("self")
    return {} if bottom is None else _zero_division(None, bottom, call.producers.get("self", ()))


def _addcdiv(call: Call) -> dict[str, Plain]:
    top, bottom = call.tensor("tensor1"), call.tensor("tensor2")
    if bottom is None:
        return {}
    facts = _zero_division(top, bottom, call.producers.get("tensor2", ()))
    facts["denominator_zeros"] = facts["zero_divisors"]
    return facts


def _zero_division(
    top: torch.Tensor | None, bottom: torch.Tensor, made_by: tuple[Producer, ...]
) -> dict[str, Plain]:
    zero = bottom == 0
    facts: dict[str, Plain] = {"zero_divisors": count(zero), "divisor_is": divisor_kind(made_by)}
    if top is not None:
        facts["zero_over_zero"] = count(zero & (top == 0))
    rest = bottom[~zero].abs() if bottom.dim() else bottom[~zero.reshape(())].abs()
    if rest.numel():
        facts["divisor_min_abs"] = float(rest.min())
    return facts


def _product(call: Call) -> dict[str, Plain]:
    left, right = call.tensor("self", "input"), call.tensor("other", "mat2", "weight")
    if left is None or right is None:
        return {}
    pairs = 0
    for one, two in ((left, right), (right, left)):
        bad = not bool(torch.isfinite(one).all())
        pairs += int(bad and bool((two == 0).any()))
    return {"zero_times_bad": pairs > 0}


def _sum_of_two(call: Call) -> dict[str, Plain]:
    left, right, output = call.tensor("self"), call.tensor("other"), call.output
    if left is None or right is None or output is None:
        return {}
    both_finite = torch.isfinite(left) & torch.isfinite(right)
    both_infinite = torch.isinf(left) & torch.isinf(right)
    return {
        "overflow_of_finite": count(both_finite & ~torch.isfinite(output)),
        "inf_minus_inf": count(both_infinite & torch.isnan(output)),
    }


TABLE: dict[str, Measurement] = {
    "div": _divide,
    "true_divide": _divide,
    "remainder": _divide,
    "fmod": _divide,
    "reciprocal": _reciprocal,
    "rsqrt": _reciprocal,
    "addcdiv": _addcdiv,
    "mul": _product,
    "mm": _product,
    "bmm": _product,
    "add": _sum_of_two,
    "sub": _sum_of_two,
}
