"""Functions that are not defined everywhere, or overflow: log, sqrt, acos, exp, pow, casts."""

from __future__ import annotations

import math

import torch

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.facts.call import Call, Measurement, count


def _interval(low: float, high: float) -> Measurement:
    """Inputs outside of [low, high]; on the edge the value or its gradient is infinite."""

    def measured(call: Call) -> dict[str, Plain]:
        x = call.tensor("self", "input", "x")
        if x is None or not x.dtype.is_floating_point:
            return {}
        finite = x[torch.isfinite(x)]
        return {
            "outside": count((finite < low) | (finite > high)),
            "boundary": count((finite == low) | (finite == high)),
        }

    return measured


def _xlogy(call: Call) -> dict[str, Plain]:
    y = call.tensor("other")
    return {} if y is None else {"outside": count(y < 0), "boundary": count(y == 0)}


def _exponential(call: Call) -> dict[str, Plain]:
    x = call.tensors.get("self")
    if x is None or not x.dtype.is_floating_point:
        return {}
    limit = math.log(torch.finfo(x.dtype).max)
    return {"limit": limit, "beyond": count(x.double() > limit)}


def _power(call: Call) -> dict[str, Plain]:
    base, exponent = call.tensor("self"), call.tensor("exponent")
    facts: dict[str, Plain] = {}
    number = call.number("exponent")
    if exponent is not None and exponent.numel() == 1:
        number = float(exponent)
    if number is not None:
        facts["exponent"] = number
        facts["fractional"] = number != int(number) if math.isfinite(number) else False
    if base is not None:
        facts["zero_base"] = count(base == 0)
        facts["negative_base"] = count(base < 0)
    return facts


def _cast(call: Call) -> dict[str, Plain]:
    source, target = call.tensors.get("self"), call.output
    if target is None or not target.dtype.is_floating_point:
        return {}
    facts: dict[str, Plain] = {
        "to_dtype": str(target.dtype).removeprefix("torch."),
        "limit": torch.finfo(target.dtype).max,
    }
    if source is not None:
        facts["from_dtype"] = str(source.dtype).removeprefix("torch.")
    return facts


TABLE: dict[str, Measurement] = {
    "log": _interval(0.0, math.inf),
    "log2": _interval(0.0, math.inf),
    "log10": _interval(0.0, math.inf),
    "log1p": _interval(-1.0, math.inf),
    "sqrt": _interval(0.0, math.inf),
    "rsqrt": _interval(0.0, math.inf),
    "acos": _interval(-1.0, 1.0),
    "asin": _interval(-1.0, 1.0),
    "atanh": _interval(-1.0, 1.0),
    "acosh": _interval(1.0, math.inf),
    "erfinv": _interval(-1.0, 1.0),
    "logit": _interval(0.0, 1.0),
    "special_ndtri": _interval(0.0, 1.0),
    "binary_cross_entropy": _interval(0.0, 1.0),
    "xlogy": _xlogy,
    "exp": _exponential,
    "expm1": _exponential,
    "exp2": _exponential,
    "sinh": _exponential,
    "cosh": _exponential,
    "i0": _exponential,
    "pow": _power,
    "float_power": _power,
    "to_copy": _cast,
}
