"""TracedBirth: everything measured at the operation where a bad value was born. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from stayfinite.findings.incident import Birth, TensorSummary

Plain: TypeAlias = "bool | int | float | str | tuple[Plain, ...] | None"

TRANSITIONS = (
    "finite->nan",  # every tensor input was finite
    "finite->inf",
    "inf->nan",  # an input held Inf (often a deliberate mask of -inf) and the op made NaN of it
    "outside",  # came in bad: batch, file, numpy, a parameter or buffer nobody traced
    "deliberate",  # the script wrote it: a literal or fill value of NaN/Inf, torch.full(..., -inf)
    "uninitialised",  # torch.empty and friends, read before anything was written
    "amplified",  # finite, but orders of magnitude larger than what went in
    "raised",  # the op raised an exception; there is no output
)

EXPONENTIALS = (
    "exp",
    "exp2",
    "softplus",
)  # positive on paper: their smallest value says whether one underflowed
UNIFORM_DRAWS = ("rand", "uniform")  # seldom exactly 0: their smallest value says whether it was

ORIGINS = (
    "parameter",  # `name` is its path in the model
    "buffer",  # `name` is its path in the model
    "state",  # a tensor of the optimizer's state
    "gradient",  # the .grad of a parameter
    "batch",  # handed out by a DataLoader
    "constant",  # a literal, torch.full/zeros/ones/arange, or a number of the script
    "random",  # torch.randn and friends
    "activation",  # computed by the op `producers[0]`
    "rank",  # sent by other ranks, or computed from what they sent
    "outside",  # appeared without a traced producer
)


@dataclass(frozen=True, slots=True)
class Producer:
    """An operation somewhere upstream: what it was, where, and its plain arguments."""

    op: str  # "aten.sum.default"
    call: str  # "Tensor.sum", the function the script (or a library it uses) called
    file: str | None
    line: int | None
    module: str | None
    scalars: Mapping[str, Plain] = field(default_factory=dict)  # {"other": 1e-08}, {"exponent": 0.5}
    distance: int = 1  # 1 = it made the operand itself
    absmax: float | None = None  # largest magnitude it put out
    # of an exponential, a uniform draw, or a power of what is not 0: the smallest value it put out
    least: float | None = None
    inputs: tuple[str, ...] = ()  # dtypes of its tensor inputs: ("bool",) for the sum of a mask
    learnt: bool = False  # something that is trained went into it
    in_backward: bool = False  # computed in the backward pass: a gradient on its way
    number: int = -1  # of all ops that were followed
    made_of: tuple[int, ...] = ()  # the numbers of those that made its inputs
    position: int = -1  # of the instruction within its function: a line may hold several of one kind

    @property
    def name(self) -> str:
        """The bare name of the op, without namespace, overload and the in-place underscore: "sum"."""
        return bare_op(self.op)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that went into (or came out of) an operation, in numbers, and where it came from."""

    summary: TensorSummary  # name of the argument, shape, dtype, finite min and max, zeros, nan, inf
    origin: str = "outside"  # one of ORIGINS
    name: str | None = None  # "head.3.weight" for a parameter or buffer
    negatives: int = 0
    posinf: int = 0
    neginf: int = 0
    absmax: float | None = None  # of the finite values
    smallest_positive: float | None = None
    requires_grad: bool = False
    learnt: bool = False  # it is, or was computed from, something that is trained
    in_backward: bool = False  # computed in the backward pass: a gradient on its way
    producers: tuple[Producer, ...] = ()  # upstream ops, nearest first, a few steps back
    samples: tuple[int, ...] = ()  # of a tensor of the batch: which of its samples hold NaN or Inf

    @property
    def dtype(self) -> str:
        return self.summary.dtype

    @property
    def provenance(self) -> str:
        """parameter, buffer, state, gradient, hidden (computed from parameters), or data (all else)."""
        if self.origin in ("parameter", "buffer", "state", "gradient"):
            return self.origin
        return "hidden" if self.learnt or self.requires_grad else "data"

    @property
    def numel(self) -> int:
        count = 1
        for size in self.summary.shape:
            count *= size
        return count

    @property
    def finite(self) -> bool:
        return not (self.summary.nan or self.summary.inf)

    @property
    def is_integer(self) -> bool:
        return self.dtype.startswith(("int", "uint", "bool"))

    def made_by(self, *names: str, within: int = 4) -> Producer | None:
        """The nearest upstream op with one of these bare names ("sum", "amax"), at most `within` ops away."""
        return next((p for p in self.producers if p.distance <= within and p.name in names), None)


@dataclass(frozen=True, slots=True)
class Float32Verdict:
    """The same op on the same inputs, computed in float32."""

    finite: bool
    absmax: float | None  # of the finite values: above 65504 and finite means float16 was the problem


@dataclass(frozen=True, slots=True)
class TracedBirth:
    """One birth with its evidence. `birth` is what incident.json shows; the rest is for the rules.

    facts, by op (present only where they apply; counts are of elements unless it says rows):
      any              into_data: a literal that the script wrote among numbers which were drawn or brought in
      backward         selected, unselected: bad elements at which the gradient from above is not 0, is 0
      log, log1p, log2, log10, xlogy, sqrt, rsqrt, acos, asin, atanh, acosh, erfinv, logit
                       outside: inputs outside the domain; boundary: inputs exactly on its edge
      exp, expm1, ...  limit: the largest input that does not overflow in this dtype; beyond: inputs above it
      pow              exponent, fractional, negative_base, zero_base
      div, reciprocal, rsqrt
                       zero_divisors, zero_over_zero, divisor_is: count | range | std | norm | sum | mean |
                       max | constant | probability | other, the kind of quantity that the divisor is;
                       divisor_min_abs (the smallest non-zero divisor); one_of: what is 1, on a line that divides by
                       it less 1
      mul, mm, addmm, bmm, matmul, convolution, scaled_dot_product_attention
                       zero_times_bad: a zero meets a NaN or Inf
      softmax, log_softmax, logsumexp
                       fully_masked_rows: rows that are -inf throughout; rows
      add, sub         inf_minus_inf; overflow_of_finite: both sides finite, the sum is not
      std, var, var_mean, native_batch_norm
                       n: values along the reduced dims; correction
      mean, sum, nll_loss, cross_entropy
                       empty: reduced over nothing; valid: labels that are not ignored
      nll_loss, cross_entropy, embedding, gather, index_select, index
                       index_min, index_max, size, invalid: indices outside 0..size-1 (ignore_index excepted)
      ctc_loss         input_lengths, target_lengths, needed: frames needed with repeats; infeasible: samples
      linalg ops       smallest_gap, smallest: of the singular or eigenvalues, condition
      norm             zero_rows: vectors of norm 0
      optimizer ops    denominator_zeros
      _to_copy         from_dtype, to_dtype, limit: the largest value of the target dtype
    """

    birth: Birth
    phase: str  # forward, backward, optimizer, data or state
    transition: str  # one of TRANSITIONS
    operands: tuple[Operand, ...] = ()
    output: Operand | None = None
    scalars: Mapping[str, Plain] = field(default_factory=dict)  # the op's plain arguments by name
    facts: Mapping[str, Plain] = field(default_factory=dict)
    autocast: str | None = None  # "float16" while autocast was on
    float32: Float32Verdict | None = None  # only for births in half precision
    node: str | None = None  # the autograd node of a backward birth: "SqrtBackward0"
    forward_op: str | None = None  # for a backward birth, the forward op: "aten.sqrt.default"
    saved: tuple[Operand, ...] = ()  # for a backward birth, what the forward op saved: self, result, ...
    hidden_by: tuple[Producer, ...] = ()  # ops that made finite numbers of it: where, ...
    follows: bool = False  # another birth of the same failure led to it

    @property
    def op(self) -> str:
        """The bare name of the op: "log", "div", "softmax"; `birth.op` is the full one."""
        return bare_op(self.birth.op)

    @property
    def forward_name(self) -> str | None:
        """The bare name of the forward op behind a backward birth."""
        return bare_op(self.forward_op) if self.forward_op else None

    @property
    def dtype(self) -> str:
        return self.birth.dtype

    @property
    def is_half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    def operand(self, *names: str) -> Operand | None:
        """The first operand with one of these argument names ("self", "other", "input")."""
        return next((o for o in self.operands if o.summary.name in names), None)

    def saved_tensor(self, *names: str) -> Operand | None:
        """What the forward op saved under one of these names ("self", "result")."""
        return next((o for o in self.saved if o.summary.name in names), None)

    def fact(self, name: str) -> float:
        """A numeric fact, 0 where it does not apply."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, (bool, int, float)) else 0.0


def bare_op(op: str) -> str:
    """The name alone: aten._softmax.default -> softmax, aten.add_.Tensor -> add, _foreach_mul_ -> mul."""
    name = op.removeprefix("aten.").split(".")[0].strip("_")
    return name.removeprefix("foreach_").removesuffix("_").removesuffix("_forward")
