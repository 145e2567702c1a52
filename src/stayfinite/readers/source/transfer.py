"""What comes out of a torch function, given what goes in: the interval, and what kind of thing it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stayfinite.findings.subjects.source_file import Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.intervals import ANY, INF, NOT_NEGATIVE, POSITIVE, SYMMETRIC_UNIT, UNIT, Span

NOTHING: frozenset[str] = frozenset()
FINFO_MIN = -65504.0  # the least of the minima; the others lie below


@dataclass(slots=True)
class Draft:
    """The result of an operation before it gets its origin. `known`: the interval rests on evidence."""

    span: Span = ANY
    kind: str = "tensor"
    traits: frozenset[str] = NOTHING
    known: bool = True
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    grad: bool | None = None


Options = Mapping[str, Value]
Transfer = Callable[[Sequence[Value], Options], Draft]


def span_of(value: Value) -> Span:
    return Span(value.low, value.high, value.low_open, value.high_open)


def dtype_of(values: Sequence[Value]) -> str | None:
    """Of mixed operands: a Python number does not change a tensor's dtype; otherwise the wider one."""
    found = {
        value.dtype for value in values if value.dtype is not None and value.kind not in ("number", "mask")
    }
    if len(found) == 1:
        return found.pop()
    return "float32" if "float32" in found else None


def _fixed(span: Span, *traits: str) -> Transfer:
    made = frozenset(traits)

    def transfer(args: Sequence[Value], options: Options) -> Draft:
        return Draft(span, traits=made, dtype=dtype_of(args))

    return transfer


def _first(args: Sequence[Value]) -> Value:
    return args[0] if args else Value()


def _of(made: Callable[[Value], Draft]) -> Transfer:
    """Where only the first argument counts."""
    return lambda args, options: made(_first(args))


def _exp(value: Value) -> Draft:
    shifted = value.has("shifted")
    underflows = shifted or (value.known and value.low == -INF and value.high <= 0)
    span = intervals.exponential(
        Span(-INF, 0.0) if shifted else span_of(value), underflows=underflows and value.high < INF
    )
    traits = {"exponential"} | ({"contains_one"} if shifted else set())
    if value.high == INF and value.known and not shifted:
        traits.add("can_overflow")
    return Draft(span, traits=frozenset(traits))


def _log(value: Value) -> Draft:
    return Draft(
        intervals.logarithm(span_of(value)), known=value.known, traits=frozenset({"logarithm"}) & value.traits
    )


def _abs(value: Value) -> Draft:
    span = intervals.absolute(span_of(value))
    # Of an unknown value nothing says that it is ever exactly 0.
    return Draft(span if value.known else POSITIVE, traits=frozenset({"absolute"}))


def pow_(args: Sequence[Value], options: Options) -> Draft:
    base = _first(args)
    exponent = args[1] if len(args) > 1 else options.get("exponent", Value())
    number = exponent.number
    if number is None:
        reachable = base.known and base.low >= 0
        return Draft(NOT_NEGATIVE if reachable else ANY, known=reachable, traits=base.traits & _PROBABILITIES)
    if math.isinf(number):
        return Draft(known=False)
    even = number.is_integer() and int(number) % 2 == 0
    known = base.known or even
    traits = frozenset({"square"}) if number == 2 else base.traits & _PROBABILITIES
    return Draft(
        intervals.power(span_of(base), number),
        kind="number" if base.kind == "number" else "tensor",
        traits=traits,
        known=known,
    )


_PROBABILITIES = frozenset({"probability", "probability_product"})
_SUMMED = frozenset({"square", "count", "absolute", "probability_product", "zero_rows", "named"})


def _sum(args: Sequence[Value], options: Options) -> Draft:
    value = _first(args)
    dtype = options.get("dtype")
    out = str(dtype.const) if dtype is not None and dtype.kind == "dtype" else value.dtype
    if value.kind == "mask":
        return Draft(NOT_NEGATIVE, traits=frozenset({"count"}))
    if value.has("named_mask"):
        return Draft(NOT_NEGATIVE, traits=frozenset({"count", "named"}))
    traits = value.traits & _SUMMED
    if value.has("shifted") or value.has("contains_one"):
        return Draft(Span(1.0, INF), traits=traits, dtype=out)
    if value.low >= 0 and value.known:
        if value.has("probability") and not value.has("masked"):
            return Draft(POSITIVE, traits=traits, dtype=out)  # they add up to about one
        if value.made is not None and value.made.name in ("sigmoid", "softplus", "gelu", "rand", "tensor"):
            # that all are zero at once is not to be expected
            return Draft(POSITIVE, traits=traits, dtype=out)
        return Draft(Span(value.low, INF, value.low_open), traits=traits, dtype=out)
    if value.high <= 0 and value.known:
        return Draft(Span(-INF, value.high, False, value.high_open), traits=traits, dtype=out)
    return Draft(ANY, known=False, dtype=out)


def _mean(args: Sequence[Value], options: Options) -> Draft:
    value = _first(args)
    drafted = _sum(args, options)
    if drafted.known and value.known and value.high < INF:
        drafted.span = Span(
            min(drafted.span.low, value.low) if value.low < 0 else (value.low if value.low > 0 else 0.0),
            value.high,
            drafted.span.low_open and value.low <= 0,
            value.high_open,
        )
    return drafted


def clamp(args: Sequence[Value], options: Options) -> Draft:
    value = _first(args)
    low = options.get("min", args[1] if len(args) > 1 else None)
    high = options.get("max", args[2] if len(args) > 2 else None)
    span = span_of(value)
    if low is not None and low.const is not Ellipsis and low.kind != "none":
        floor = span_of(low) if low.number is not None or low.known else POSITIVE
        if low.number is None and not low.known and low.kind != "unknown_negative":
            # A bound whose value is not written down: people write a positive eps there.
            floor = Span(0.0, INF, True) if span.low >= 0 or not value.known else Span(-INF, INF)
        span = intervals.at_least(span, Span(floor.low, floor.low, floor.low_open, floor.low_open))
        if value.high == INF:
            span = span._replace(high=INF, high_open=False)
    if high is not None and high.kind != "none":
        if high.number is not None:
            span = intervals.at_most(span, Span(high.number, high.number))
        elif not high.known:
            span = Span(span.low, INF, span.low_open, True)
            if value.high <= 1:
                span = Span(span.low, value.high, span.low_open, True)
    bounded = low is not None or high is not None
    return Draft(span, traits=(value.traits | {"clamped"}) - {"can_overflow"}, known=value.known or bounded)


def _clamp_min(args: Sequence[Value], options: Options) -> Draft:
    low = options.get("min", args[1] if len(args) > 1 else None)
    return clamp(args[:1], {"min": low} if low is not None else {})


def _clamp_max(args: Sequence[Value], options: Options) -> Draft:
    high = options.get("max", args[1] if len(args) > 1 else None)
    return clamp(args[:1], {"max": high} if high is not None else {})


def maximum(args: Sequence[Value], options: Options) -> Draft:
    if len(args) < 2:
        return Draft(span_of(_first(args)), traits=frozenset({"maximum"}), known=_first(args).known)
    span = span_of(args[0])
    for other in args[1:]:
        span = intervals.at_least(span, span_of(other))
    numbers = all(value.kind == "number" for value in args)
    known = any(value.known or value.number is not None for value in args)
    return Draft(span, kind="number" if numbers else "tensor", known=known and span.low > -INF)


def minimum(args: Sequence[Value], options: Options) -> Draft:
    if len(args) < 2:
        return Draft(span_of(_first(args)), traits=frozenset({"minimum"}), known=_first(args).known)
    span = span_of(args[0])
    for other in args[1:]:
        span = intervals.at_most(span, span_of(other))
    known = any(value.known or value.number is not None for value in args)
    return Draft(span, known=known and span.high < INF and span.low > -INF)


def _randint(args: Sequence[Value], options: Options) -> Draft:
    numbers = [value.number for value in args[:2]] or [None]
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 and numbers[1] is not None else (0.0, numbers[0])
    if low is None or high is None:
        return Draft(NOT_NEGATIVE, known=False, grad=False)
    return Draft(Span(low, high - 1), traits=frozenset({"integer"}), grad=False)


def _full(args: Sequence[Value], options: Options) -> Draft:
    fill = options.get("fill_value", args[1] if len(args) > 1 else Value())
    return Draft(
        span_of(fill),
        known=fill.number is not None or fill.known,
        traits=fill.traits & {"most_negative"},
        grad=False,
    )


def _masked_fill(args: Sequence[Value], options: Options) -> Draft:
    value, fill = _first(args), options.get("value", args[2] if len(args) > 2 else Value())
    if not fill.known and fill.number is None:
        return Draft(known=False)
    traits = (value.traits | (fill.traits & {"most_negative"})) | {"masked"}
    if fill.number is not None and fill.number <= FINFO_MIN:
        traits |= {"most_negative"} if fill.number > -INF else {"minus_infinity"}
    traits -= {"shifted"}
    return Draft(intervals.hull(span_of(value), span_of(fill)), known=value.known, traits=frozenset(traits))


def _where(args: Sequence[Value], options: Options) -> Draft:
    if len(args) < 3:
        return Draft(known=False)
    first, second = args[1], args[2]
    known = all(value.known or value.number is not None for value in (first, second))
    traits = (first.traits | second.traits) & {"most_negative", "minus_infinity"}
    for value in (first, second):
        if value.number is not None and value.number <= FINFO_MIN:
            traits |= {"most_negative"} if value.number > -INF else {"minus_infinity"}
    return Draft(intervals.hull(span_of(first), span_of(second)), known=known, traits=traits | {"selected"})


def _nan_to_num(value: Value) -> Draft:
    return Draft(span_of(value), known=value.known, traits=value.traits - {"holds_nan"})


def _sqrt(value: Value) -> Draft:
    low = value.low**0.5 if 0 < value.low < INF else 0.0
    high = value.high**0.5 if 0 <= value.high < INF else INF
    return Draft(
        Span(low, high, value.low_open, value.high_open),
        known=value.known,
        traits=value.traits & {"deviation", "square"},
    )


def _prod(value: Value) -> Draft:
    if value.has("probability") or (value.low >= 0 and value.high <= 1 and value.known):
        return Draft(UNIT, traits=frozenset({"probability_product"}))
    return Draft(known=False)


def _unbounded(args: Sequence[Value], options: Options) -> Draft:
    return Draft(ANY, known=False, dtype=dtype_of(args))


def _with_zeros(value: Value) -> Draft:
    return Draft(intervals.hull(span_of(value), _ZERO), known=value.known, traits=value.traits)


_ZERO, _ONE = Span(0.0, 0.0), Span(1.0, 1.0)
_FROM_ZERO_TO_ONE = Span(0.0, 1.0, False, True)

_BY_NAMES: dict[str, Transfer] = {
    "softmax gumbel_softmax": _fixed(UNIT, "probability"),
    "sigmoid": _fixed(UNIT, "saturating"),
    "hardsigmoid": _fixed(UNIT),
    "tanh erf": _fixed(SYMMETRIC_UNIT, "saturating"),
    "hardtanh cos sin": _fixed(SYMMETRIC_UNIT),
    "log_softmax logsigmoid": _fixed(Span(-INF, 0.0), "logarithm"),
    "relu relu_": _fixed(NOT_NEGATIVE),
    "relu6": _fixed(Span(0.0, 6.0)),
    "softplus": _fixed(POSITIVE),
    "elu": _fixed(Span(-1.0, INF, True)),
    "gelu logsumexp linear matmul bmm conv1d conv2d": _unbounded,
    "cosine_similarity": _fixed(SYMMETRIC_UNIT, "cosine"),
    "rand rand_like": _fixed(_FROM_ZERO_TO_ONE),
    "randn randn_like": _fixed(ANY, "noise"),
    "exp": _of(_exp),
    "log": _of(_log),
    "abs absolute": _of(_abs),
    "square": _of(lambda v: Draft(intervals.power(span_of(v), 2), traits=frozenset({"square"}))),
    "pow": pow_,
    "sum": _sum,
    "mean": _mean,
    "norm vector_norm matrix_norm": _of(
        lambda v: Draft(NOT_NEGATIVE, traits=v.traits & {"zero_rows"} | {"norm"})
    ),
    "std var": _of(
        lambda v: Draft(POSITIVE if v.has("noise") else NOT_NEGATIVE, traits=frozenset({"deviation"}))
    ),
    "count_nonzero": _fixed(NOT_NEGATIVE, "count"),
    "bincount histc": _of(
        lambda v: Draft(NOT_NEGATIVE, traits=frozenset({"count", "class_counts"}), grad=False)
    ),
    "one_hot": _of(lambda v: Draft(UNIT, grad=False, traits=frozenset({"one_hot"}))),
    "clamp clamp_ clip": clamp,
    "clamp_min clamp_min_": _clamp_min,
    "clamp_max clamp_max_": _clamp_max,
    "maximum amax": maximum,
    "minimum amin": minimum,
    "randint": _randint,
    "eye": _of(lambda v: Draft(UNIT, traits=frozenset({"identity"}), grad=False)),
    "full full_like": _full,
    "zeros zeros_like new_zeros": _fixed(_ZERO, "constant"),
    "ones ones_like new_ones": _fixed(_ONE, "constant"),
    "masked_fill masked_fill_": _masked_fill,
    "where": _where,
    "normalize": _of(lambda v: Draft(SYMMETRIC_UNIT, traits=v.traits & {"zero_rows"} | {"unit_length"})),
    "nan_to_num": _of(_nan_to_num),
    "sqrt": _of(_sqrt),
    "rsqrt": _of(lambda v: Draft(POSITIVE, known=v.known)),
    "prod cumprod": _of(_prod),
    "reciprocal": _of(lambda v: Draft(intervals.reciprocal(span_of(v)), known=v.known)),
    "diff": _of(lambda v: Draft(ANY, known=v.known, traits=v.traits & {"holds_nan"})),
    "triu tril": _of(_with_zeros),
    "dropout": _of(lambda v: _with_zeros(replace(v, traits=v.traits - {"probability"}))),
}
TRANSFERS = {name: transfer for names, transfer in _BY_NAMES.items() for name in names.split()}
