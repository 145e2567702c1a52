"""log, sqrt, pow and division that stay finite, in value and in gradient, at the edge of their domain.

Away from the edge each is the plain function. At the edge the value is the nearest finite one and the
gradient is a bounded slope of the right sign, never inf and never NaN. Outside the domain (a negative input
of log or sqrt, a NaN) the result stays NaN on purpose: that is a mistake in the formula, and hiding it
would not repair it.
"""

import math

import torch
from torch import Tensor


def _edge_slope(dtype: torch.dtype, factor: float, exponent: float) -> float:
    """The slope used at the edge: factor * x ** exponent, the plain form's own, at x = the machine epsilon.

    The slope at the smallest number would be finite too (1e38 for log in float32), but one such element would
    drown every other gradient of the step. The square root of the dtype's maximum is the upper bound, so that
    the norm of the gradient still exists.
    """
    limits = torch.finfo(dtype)
    log_slope = math.log(abs(factor)) + exponent * math.log(limits.eps)
    return math.copysign(math.exp(min(log_slope, 0.5 * math.log(limits.max))), factor)


def safe_log(x: Tensor) -> Tensor:
    """log(x); where 1 / x overflows it is -log(largest number of the dtype), with a bounded slope.

    >>> safe_log(torch.tensor([0.0, 1.0]))
    tensor([-88.7228,   0.0000])
    """
    limits = torch.finfo(x.dtype)
    with torch.no_grad():
        at_edge = (x >= 0) & x.reciprocal().isinf()
    slope = _edge_slope(x.dtype, 1.0, -1.0)
    # 1 / max is where the edge begins, so the line meets the logarithm there.
    line = slope * (x - 1.0 / limits.max) - math.log(limits.max)
    return torch.where(at_edge, line, torch.where(at_edge, 1.0, x).log())


def safe_sqrt(x: Tensor) -> Tensor:
    """sqrt(x); at 0 it is 0 with a slope of 0.5 / sqrt(machine epsilon) instead of infinity.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> safe_sqrt(x).sum().backward()
    >>> bool(x.grad.isfinite())
    True
    """
    at_edge = x == 0
    slope = _edge_slope(x.dtype, 0.5, -0.5)
    return torch.where(at_edge, slope * x, torch.where(at_edge, 1.0, x).sqrt())


def safe_pow(x: Tensor, exponent: float) -> Tensor:
    """x ** exponent for x >= 0, with finite value and gradient at and near 0.

    For 0 < exponent < 1 the value is the plain one (0 at 0) and only the infinite gradient is replaced. For
    a negative exponent the value stops growing where the plain gradient overflows. An exponent of 0, 1 or
    more has no edge at 0 and is the plain function. Overflow at a large x stays inf.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> safe_pow(x, 0.6).sum().backward()
    >>> bool(x.grad.isfinite())
    True
    """
    if exponent >= 1 or exponent == 0:
        return x.pow(exponent)
    with torch.no_grad():
        value = x.pow(exponent)
        at_edge = (x >= 0) & ~(value.isfinite() & (exponent * x.pow(exponent - 1)).isfinite())
        if exponent < 0:
            # At the edge the plain slope, |exponent| * edge ** (exponent - 1), is the largest number.
            log_edge = (math.log(torch.finfo(x.dtype).max) - math.log(-exponent)) / (exponent - 1)
            value = value.abs().clamp(max=math.exp(exponent * log_edge))  # abs: (-0.0) ** -1 is -inf
    slope = _edge_slope(x.dtype, exponent, exponent - 1)
    inside = torch.where(at_edge, x, 0.0)
    line = value + slope * (inside - inside.detach())
    return torch.where(at_edge, line, torch.where(at_edge, 1.0, x).pow(exponent))


def safe_div(numerator: Tensor | float, denominator: Tensor) -> Tensor:
    """numerator / denominator, finite for every pair of finite operands.

    A zero denominator gives 0 (so an empty sum over an empty count is 0); a quotient too large for the
    dtype is its largest number. Where the quotient or one of its two derivatives is not finite, the
    gradient is zero: the sign of the denominator, and with it the direction, is not known there.

    >>> safe_div(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0.0, 0.0, 2.0]))
    tensor([0.0000, 0.0000, 1.5000])
    """
    with torch.no_grad():
        value = numerator / denominator
    top = torch.as_tensor(numerator, dtype=value.dtype, device=value.device)
    bottom = denominator.to(value.dtype)
    with torch.no_grad():
        fine = value.isfinite() & (value / bottom).isfinite() & bottom.reciprocal().isfinite()
        at_edge = ~fine & top.isfinite() & bottom.isfinite()
        largest = torch.finfo(value.dtype).max
        value = torch.where(bottom == 0, 0.0, value.clamp(-largest, largest))
    return torch.where(at_edge, value, torch.where(at_edge, 0.0, top) / torch.where(at_edge, 1.0, bottom))


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x <= 0 without cancellation; at 0 it is ``safe_log(0)``. A positive x gives NaN.

    The plain form loses every digit near 0 and the form with log1p does so far from it; the switch at -log 2
    keeps both exact.

    >>> log1mexp(torch.tensor([-1e-10, -50.0]))
    tensor([-2.3026e+01, -1.9287e-22])
    """
    near = x > -math.log(2.0)
    from_expm1 = safe_log(-torch.where(near, x, -1.0).expm1())
    from_log1p = torch.log1p(-torch.where(near, -1.0, x).exp())
    # A NaN is neither near nor far: the second branch passes it on.
    return torch.where(near, from_expm1, from_log1p)
