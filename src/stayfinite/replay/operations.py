"""What an operation is, read once from its schema: argument names, what it writes, whether it is pointwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.traced_birth import Plain, bare_op

# Memory that nobody has written yet.
_UNINITIALISED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_RANDOM = {"rand", "randn", "randint", "randperm", "normal", "uniform", "bernoulli", "multinomial",
           "rand_like", "randn_like", "randint_like", "exponential", "log_normal", "native_dropout"}  # fmt: skip
_FACTORIES = {"full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones",
              "arange", "linspace", "logspace", "eye", "scalar_tensor", "fill", "zero", "tril_indices",
              "triu_indices", "lift_fresh"}  # fmt: skip


# What the schema does not say: these update the running statistics.
_WRITES_TOO = {
    "native_batch_norm": {"running_mean", "running_var"},
    "cudnn_batch_norm": {"running_mean", "running_var"},
    "miopen_batch_norm": {"running_mean", "running_var"},
}
_BOOKKEEPING = {"record_stream", "set", "resize"}  # they move memory around and compute nothing


@dataclass(frozen=True, slots=True)
class Operation:
    """An overload of an op, in what the tracer needs of it."""

    name: str  # "aten.add_.Tensor"
    bare: str  # "add"
    arguments: tuple[str, ...]
    writes: frozenset[str]  # names of the arguments it writes into
    pointwise: bool
    uninitialised: bool
    random: bool
    factory: bool
    view: bool  # gives another look at the same memory
    shape_only: bool  # reads no values: zeros_like, new_full
    ignored: bool  # bookkeeping of the profiler and the like


_KNOWN: dict[Any, Operation] = {}


def operation(func: Any) -> Operation:
    """The description of an OpOverload, cached."""
    known = _KNOWN.get(func)
    if known is None:
        known = _KNOWN[func] = _describe(func)
    return known


def _describe(func: Any) -> Operation:
    schema = func._schema
    name = str(func)
    bare = bare_op(name)
    plain_name = name.removeprefix("aten.").split(".")[0]
    return Operation(
        name=name,
        bare=bare,
        arguments=tuple(argument.name for argument in schema.arguments),
        writes=frozenset(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        )
        | _WRITES_TOO.get(plain_name, set()),
        pointwise=torch.Tag.pointwise in getattr(func, "tags", ()),
        uninitialised=plain_name in _UNINITIALISED,
        random=bare in _RANDOM,
        factory=plain_name.rstrip("_") in _FACTORIES,
        view=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        shape_only=plain_name.startswith("new_") or plain_name.endswith("_like"),
        ignored=name.startswith(("profiler.", "prim.", "c10d_functional.wait")) or bare in _BOOKKEEPING,
    )


def named_arguments(
    op: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a call with their names."""
    for position, value in enumerate(args):
        yield (op.arguments[position] if position < len(op.arguments) else f"arg{position}"), value
    yield from kwargs.items()


def tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in one argument; those of a list are called name[0], name[1], ..."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                yield f"{name}[{index}]", item


def plain(value: Any) -> Plain:
    """A number, string or tuple of them as it is; a dtype or device as its name; anything else None."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and len(value) <= 16:
        return tuple(plain(item) for item in value)
    return None


def plain_arguments(op: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Plain]:
    """The arguments that are no tensors: {"dim": (1,), "keepdim": True}."""
    found: dict[str, Plain] = {}
    for name, value in named_arguments(op, args, kwargs):
        if isinstance(value, torch.Tensor) or value is None:
            continue
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            continue
        known = plain(value)
        if known is not None:
            found[name] = known
    return found


def writes_a_bad_number(scalars: Mapping[str, Plain]) -> bool:
    """Whether the script itself passed a NaN or Inf: full(..., -inf), masked_fill(mask, -inf)."""
    return any(isinstance(value, float) and not math.isfinite(value) for value in scalars.values())
