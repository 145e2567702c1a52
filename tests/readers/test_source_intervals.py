"""The interpreter's intervals hold: whatever numbers go in, what torch computes lies in the interval it says."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stayfinite.readers.source import intervals, read_source
from stayfinite.readers.source.intervals import Span

NUMBERS = st.floats(-50, 50, allow_nan=False)
OPERATIONS = {
    "add": (intervals.add, lambda a, b: a + b),
    "subtract": (intervals.subtract, lambda a, b: a - b),
    "multiply": (intervals.multiply, lambda a, b: a * b),
    "divide": (intervals.divide, lambda a, b: a / b),
    "at_least": (intervals.at_least, max),
    "at_most": (intervals.at_most, min),
}


@st.composite
def spans_with_a_point(draw: st.DrawFn) -> tuple[Span, float]:
    """An interval, and a number in it."""
    point = draw(NUMBERS)
    below, above = draw(st.floats(0, 20)), draw(st.floats(0, 20))
    low = -math.inf if draw(st.booleans()) and below > 10 else point - below
    high = math.inf if draw(st.booleans()) and above > 10 else point + above
    return Span(low, high, low < point and draw(st.booleans()), high > point and draw(st.booleans())), point


def inside(value: float, span: Span) -> bool:
    slack = 1e-9 * max(1.0, abs(value))
    return span.low - slack <= value <= span.high + slack


@pytest.mark.parametrize("name", OPERATIONS)
@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(data=st.data())
def test_a_result_lies_in_its_interval(name: str, data: st.DataObject) -> None:
    combine, compute = OPERATIONS[name]
    (first, a), (second, b) = data.draw(spans_with_a_point()), data.draw(spans_with_a_point())
    assume(name != "divide" or abs(b) > 1e-3)
    assert inside(compute(a, b), combine(first, second))


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(spans_with_a_point(), st.sampled_from([0.5, 2, 3, 4, -1, -2, 0.3]))
def test_a_power_lies_in_its_interval(given_span: tuple[Span, float], exponent: float) -> None:
    span, point = given_span
    assume(abs(point) > 1e-3 and (point > 0 or exponent == int(exponent)))
    assert inside(point**exponent, intervals.power(span, exponent))


@settings(derandomize=True, max_examples=100, deadline=None, database=None)
@given(spans_with_a_point())
def test_functions_of_one_value(given_span: tuple[Span, float]) -> None:
    span, point = given_span
    assert inside(abs(point), intervals.absolute(span))
    assert inside(math.exp(point), intervals.exponential(span, underflows=False))
    if point > 1e-6 and span.low >= 0:
        assert inside(math.log(point), intervals.logarithm(span))


@pytest.mark.parametrize(
    ("expression", "low", "high", "reaches_low"),
    [
        ("torch.softmax(x, -1)", 0, 1, True),
        ("1 - torch.sigmoid(x)", 0, 1, True),
        ("torch.softmax(x, -1).clamp_min(1e-6)", 1e-6, 1, True),
        ("F.softplus(x) + 1e-4", 1e-4, math.inf, False),
        ("F.relu(x) + 1", 1, math.inf, True),
        ("x.pow(2).mean() + 1e-6", 1e-6, math.inf, True),
        ("torch.tanh(x) ** 2", 0, 1, True),
        ("(x > 0).sum()", 0, math.inf, True),
        ("max(1, (x > 0).sum())", 1, math.inf, True),
        ("(x > 0).sum().clamp(min=1)", 1, math.inf, True),
        ("2 * torch.sigmoid(x)", 0, 2, True),
        ("torch.exp(-x.square())", 0, 1, True),
        ("torch.exp(x - x.max()).sum()", 1, math.inf, True),
    ],
)
def test_what_the_interpreter_knows(expression: str, low: float, high: float, reaches_low: bool) -> None:
    text = f"import torch\nimport torch.nn.functional as F\ndef f(x):\n    return torch.log({expression})\n"
    operation = next(op for op in read_source(text, "a.py").operations if op.name == "log")
    value = operation.operands[0]
    assert (value.low, value.high) == pytest.approx((low, high))
    assert value.known and (not value.low_open) is reaches_low


@pytest.mark.parametrize(
    "guarded",
    [
        "if n > 0:\n        return (x * m).sum() / n",
        "if n == 0:\n        return None\n    return (x * m).sum() / n",
        "assert n > 0\n    return (x * m).sum() / n",
        "return (x * m).sum() / n if m.any() else x.sum()",
        "return m.any() and (x * m).sum() / n",
        "if n == 0:\n        n = 1\n    return (x * m).sum() / n",
        "if not m.any():\n        raise ValueError\n    return (x * m).sum() / n",
    ],
)
def test_a_test_of_the_variable_guards_what_follows(guarded: str) -> None:
    def divisions(body: str) -> list[bool]:
        text = f"import torch\ndef f(x, y):\n    m = y > 0\n    n = m.sum()\n    {body}\n"
        return [op.guarded for op in read_source(text, "a.py").operations if op.name == "div"]

    assert divisions(guarded) in ([True], [])
    assert divisions("if x is not None:\n        return (x * m).sum() / n") == [False]
