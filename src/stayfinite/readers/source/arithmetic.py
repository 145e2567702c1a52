"""The abstract interpreter's arithmetic: intervals combined, and forms whose meaning lies in both sides being one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Value
from stayfinite.readers.source import intervals, transfer
from stayfinite.readers.source.intervals import Span
from stayfinite.readers.source.names import dotted
from stayfinite.readers.source.recording import Recorder
from stayfinite.readers.source.repetition import differences, receiver, reduces, same, transposed
from stayfinite.readers.source.scope import UNKNOWN
from stayfinite.readers.source.transfer import Draft, span_of
from stayfinite.readers.source.values import EDGE_TRAITS, number
from stayfinite.readers.source.vocabulary import MAXIMUM_NAME

_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}
_COMBINED: dict[str, Callable[[Span, Span], Span]] = {
    "add": intervals.add,
    "sub": intervals.subtract,
    "mul": intervals.multiply,
    "div": intervals.divide,
}


class Arithmetic(Recorder):
    """Sums, products, quotients and powers, as operators or as functions."""

    def arithmetic(
        self,
        node: ast.expr,
        name: str,
        left: Value,
        right: Value,
        left_node: ast.expr,
        right_node: ast.expr,
        style: str = "operator",
    ) -> Value:
        """An arithmetic operation, as operator or as function."""
        a, b = left.number, right.number
        if a is not None and b is not None and name in _FOLD:
            try:
                return number(_FOLD[name](a, b))
            except (ArithmeticError, ValueError, TypeError):
                return UNKNOWN
        if (
            name == "mul"
            and left.kind == "tuple"
            and left.items
            and b is not None
            and b.is_integer()
            and 0 < b <= 64
        ):
            return replace(left, items=left.items * int(b))  # [False] * 5
        if name == "mul" and (a in (INF, -INF) or b in (INF, -INF)):
            operation = self.record(node, "times_infinity", (left, right), style=style, keep=True)
            return Value("tensor", dtype=transfer.dtype_of((left, right)), reference=operation)
        if name == "pow":
            keep = True
            operation = self.record(node, "pow", (left, right), style=style, keep=keep)
            return self.result(transfer.pow_((left, right), {}), operation, (left, right))
        if name in ("and", "or"):
            masks = left.kind == "mask" or right.kind == "mask"
            if masks:
                return Value(
                    "mask", 0.0, 1.0, made=left.made or right.made, traits=left.traits | right.traits
                )
            return UNKNOWN
        if name in ("floordiv", "mod"):
            return UNKNOWN
        special = self._special(node, name, left, right, left_node, right_node)
        if special is not None:
            return special
        both_sides = _has_bounds(left) and _has_bounds(right)
        interesting = (name == "div" and right.known) or (
            name == "add" and left.has("most_negative") and right.has("most_negative")
        )
        if not both_sides and not interesting:
            return self._untraced(node, name, left, right)
        spans = span_of(left), span_of(right)
        combined = _COMBINED[name](*spans) if name in _COMBINED else intervals.ANY
        traits = _arithmetic_traits(name, left, right)
        operation = self.record(node, name, (left, right), style=style, keep=interesting)
        numbers = left.kind == "number" and right.kind == "number"
        if (
            name == "add"
            and left.has("square")
            and right.has("square")
            and not differences(left_node, right_node)
        ):
            # sigma**2 + data**2: that both are 0 is not to be expected
            combined = combined._replace(low_open=True)
        shape = left.shape if left.shape is not None else right.shape
        draft = Draft(
            combined,
            "number" if numbers else "tensor",
            traits,
            known=both_sides and name != "matmul" and (left.known or right.known),
            shape=shape,
        )
        return self.result(draft, operation, (left, right))

    def _untraced(self, node: ast.expr, name: str, left: Value, right: Value) -> Value:
        """One side is unknown: the interval is lost, dtype and the flow of gradients are not."""
        if name == "div" and self.scope.selecting and right.number is None:
            operation = self.record(node, "div", (left, right), style="operator", keep=False)
            return Value(
                "tensor",
                dtype=transfer.dtype_of((left, right)),
                reference=replace(operation, text=self.text_of(node)),
            )
        tensors = [value for value in (left, right) if value.kind not in ("number", "none")]
        grad = True if any(value.grad for value in tensors) else None
        traits: frozenset[str] = (left.traits | right.traits) & EDGE_TRAITS
        dtype = transfer.dtype_of((left, right))
        if name == "matmul":
            operation = self.record(node, "matmul", (left, right), style="operator", keep=False)
            return Value("tensor", made=None, dtype=dtype, grad=grad, reference=operation)
        if name == "add" and any(
            value.has("eps") or 0 < (value.number or 0) < 1e-2 for value in (left, right)
        ):
            traits |= {"raised"}  # p + eps: whatever it is, its author keeps it from 0
        if grad is None and not traits and dtype is None:
            return UNKNOWN
        return Value("tensor", dtype=dtype, grad=grad, traits=traits)

    def _special(
        self,
        node: ast.expr,
        name: str,
        left: Value,
        right: Value,
        left_node: ast.expr,
        right_node: ast.expr,
    ) -> Value | None:
        """Forms whose meaning lies in both sides being the same thing."""
        if name == "sub":
            span_of_one = reduces(left_node, ("max", "amax")) and reduces(right_node, ("min", "amin"))
            if span_of_one and same(receiver(left_node), receiver(right_node)):
                operation = self.record(node, "range", (left, right), style="operator", keep=False)
                drafted = Draft(intervals.NOT_NEGATIVE, traits=frozenset({"range"}))
                return self.result(drafted, operation, (left, right))
            if (
                right.has("maximum")
                or (reduces(right_node, ("max", "amax")) and same(left_node, receiver(right_node)))
                or (not right.known and MAXIMUM_NAME.search((dotted(right_node) or "").rpartition(".")[2]))
            ):
                return Value(
                    "tensor", -INF, 0.0, made=left.made or right.made, dtype=left.dtype, grad=left.grad,
                    traits=frozenset({"shifted"}),
                )  # fmt: skip
        if name == "mul" and same(left_node, right_node):
            operation = self.record(node, "square", (left,), style="operator", keep=False)
            draft = Draft(intervals.power(span_of(left), 2), traits=frozenset({"square"}))
            return self.result(draft, operation, (left,))
        if name == "matmul" and (
            same(left_node, transposed(right_node)) or same(transposed(left_node), right_node)
        ):
            operation = self.record(node, "gram", (left, right), style="operator", keep=False)
            return self.result(
                Draft(intervals.ANY, traits=frozenset({"gram"}), known=True), operation, (left, right)
            )
        return None


_OF_A_QUOTIENT = frozenset(("probability_product", "square", "class_counts", "count", "shifted", "probability",
                            "deviation", "logit"))  # fmt: skip


def _has_bounds(value: Value) -> bool:
    """Something is known of its interval: by its origin, because it is written down, or because it is an eps."""
    chosen = value.kind == "number" and value.low > -INF and value.high < INF  # 0.0 if last else 1.0
    return value.known or value.number is not None or value.has("eps") or chosen


def _arithmetic_traits(name: str, left: Value, right: Value) -> frozenset[str]:
    both = left.traits | right.traits
    kept: set[str] = set(both & EDGE_TRAITS)
    if name == "mul":
        if left.low >= 0 and right.low >= 0 and left.has("probability") and right.has("probability"):
            kept.add("probability_product")
        if left.kind == "mask" or right.kind == "mask":
            kept.add("masked")
        if left.has("norm") and right.has("norm"):
            kept |= {"norm", "norm_product"}
        kept |= both & {"probability_product", "square", "class_counts", "count", "zero_rows"}
    elif name == "div":
        kept |= left.traits & _OF_A_QUOTIENT
    elif name in ("add", "sub"):
        other = right if left.traits else left
        if other.number is not None or other.has("eps"):
            kept |= both & {"square", "count", "deviation", "class_counts", "norm", "range"}
        if name == "add" and left.has("square") and right.has("square"):
            kept.add("square")
        if name == "add" and left.reaches(0.0) and right.reaches(0.0) and min(left.low, right.low) >= 0:
            kept |= both & {"count"}  # guess.sum() + truth.sum() of a dice loss
        if name == "add" and (left.has("gram") or right.has("gram")):
            kept.add("loaded")
        if name == "sub" and left.number == 1 and (right.has("probability") or right.has("saturating")):
            kept.add("complement")
    return frozenset(kept)
