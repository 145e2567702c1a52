"""One op while it is followed: what it is, where it runs, what it reads, what it makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stayfinite.findings.subjects.traced_birth import EXPONENTIALS, UNIFORM_DRAWS
from stayfinite.replay.measure import least, measurable, stored
from stayfinite.replay.op_journal import NO_ROOTS, Entry, memory_key
from stayfinite.replay.operations import Operation, named_arguments, tensors_of, writes_a_bad_number
from stayfinite.replay.sites import Site

OVERWRITES = {"copy", "fill", "zero", "uniform", "normal", "random", "exponential", "bernoulli", "log_normal",
              "cauchy", "geometric", "set", "resize"}  # fmt: skip
_COPY_BEFORE_WRITE = 4_000_000  # elements; larger in-place targets are described after the write only
_ENORMOUS, _JUMP = 1e8, 1e6  # a gradient this large that one op made this much larger is a birth of its own
_INVERTS = {"rsqrt", "reciprocal"}
_FINDS_A_PLACE = {"bucketize", "searchsorted"}
ACCUMULATE = "torch::autograd::AccumulateGrad"
_STATISTICS = {"running_mean", "running_var"}


@dataclass(slots=True)
class Read:
    """One tensor that an op reads."""

    name: str
    tensor: torch.Tensor
    entry: Entry | None
    bad: bool
    nan: bool
    value: bool = True  # False where only the shape matters, or the old content is overwritten


@dataclass(slots=True)
class Running:
    """An op that runs now."""

    func: Any
    op: Operation
    args: Sequence[Any]  # with a copy of what the op overwrites
    kwargs: Mapping[str, Any]
    site: Site | None
    phase: str
    node: Any  # the autograd node, in the backward pass
    forward: int | None  # the entry of the forward op behind it
    reads: list[Read] = field(default_factory=list)

    @property
    def accumulates(self) -> bool:
        """The engine adds to the .grad of a leaf."""
        return self.node is not None and self.node.name() == ACCUMULATE

    def behind(self, output: torch.Tensor) -> Running:
        """With only those reads that this output is computed from: a batch norm that trains normalises by its batch,
        and keeps running statistics by the side, each for itself."""
        trains = "batch_norm" in self.op.bare and self.phase == "forward"
        if not trains or not _STATISTICS & self.op.writes or self._evaluates:
            return self
        own = memory_key(output)
        reads = [r for r in self.reads if r.name not in _STATISTICS or memory_key(r.tensor) == own]
        return replace(self, reads=reads)

    @property
    def _evaluates(self) -> bool:
        return dict(named_arguments(self.op, self.args, self.kwargs)).get("training") is False

    def at(self, index: int | None) -> Running:
        """The part of a foreach op that concerns one tensor of its lists."""
        if index is None:
            return self
        suffix = f"[{index}]"
        reads = [
            Read(r.name.split("[")[0], r.tensor, r.entry, r.bad, r.nan, r.value)
            for r in self.reads
            if "[" not in r.name or r.name.endswith(suffix)
        ]
        args = [v[index] if _is_tensor_list(v) and index < len(v) else v for v in self.args]
        return Running(
            self.func, self.op, args, self.kwargs, self.site, self.phase, self.node, self.forward, reads
        )


def before_write(op: Operation, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments with a copy of what the op is about to overwrite, for the evidence."""
    if op.bare in OVERWRITES or not args or not isinstance(args[0], torch.Tensor):
        return args
    target = args[0]
    if op.arguments[0] not in op.writes or not measurable(target) or target.numel() > _COPY_BEFORE_WRITE:
        return args
    return (target.clone(), *args[1:])


def outputs(
    op: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, reads: list[Read]
) -> Iterator[tuple[int | None, torch.Tensor]]:
    """What the op wrote, each with its place in a list of tensors. Views of an input are no new values."""
    if op.writes:
        for argument, value in named_arguments(op, args, kwargs):
            if argument not in op.writes:
                continue
            if isinstance(value, torch.Tensor):
                yield None, value
            else:
                yield from ((i, tensor) for i, (_, tensor) in enumerate(tensors_of(argument, value)))
    seen = {memory_key(read.tensor) for read in reads}
    listed = op.name.startswith("aten._foreach_")
    for index, value in enumerate(result if isinstance(result, (list, tuple)) else (result,)):
        if isinstance(value, torch.Tensor):
            key = memory_key(stored(value))
            if key is None or key not in seen:
                yield (index if listed else None), value
        elif isinstance(value, (list, tuple)):
            yield from ((i, tensor) for i, tensor in enumerate(value) if isinstance(tensor, torch.Tensor))


def transition(running: Running, entry: Entry, output: torch.Tensor) -> str | None:
    """How an op made the bad value in its output, or None when its inputs explain it."""
    op, bad_reads = running.op, [read for read in running.reads if read.bad and read.value]
    nan = math.isnan(entry.absmax)
    if not bad_reads:
        if writes_a_bad_number(entry.scalars) or _is_log_of_a_mask(op, running.reads):
            return "deliberate"
        return "finite->nan" if nan else "finite->inf"
    if nan and not any(read.nan for read in bad_reads):
        return "inf->nan"
    if op.pointwise and not op.writes and _bad_where_inputs_are_finite(output, bad_reads):
        return "finite->nan" if nan else "finite->inf"
    return None


def made_whole(running: Running, output: torch.Tensor) -> frozenset[int]:
    """The births of bad values that whole numbers in this output were made of; a flag holds no value."""
    if output.dtype == torch.bool or output.dtype.is_floating_point or output.dtype.is_complex:
        return NO_ROOTS
    bare = running.op.bare
    # The state of a decomposition (linalg_cholesky_ex) is a number of its own: that of a matrix with NaN says so.
    states = bare.startswith("linalg_") and bare.endswith("_ex")
    casts = bare == "to_copy" or bare in _FINDS_A_PLACE or states
    sources = [read for read in running.reads if read.entry is not None and read.value]
    bad = (read.entry.roots for read in sources if casts and read.bad and read.entry is not None)
    return frozenset().union(*bad, *(read.entry.cast for read in sources if read.entry is not None))


def least_made(running: Running, output: torch.Tensor) -> float | None:
    """The smallest value of an exponential, a uniform draw, or a power of what is not 0: 0 only if it was rounded."""
    op = running.op
    if op.bare in EXPONENTIALS or op.bare in UNIFORM_DRAWS:
        return least(output)
    base = running.reads[0].tensor if op.bare == "pow" and running.reads else None
    if base is None or op.writes or base.shape != output.shape or not measurable(base):
        return None
    return least(output[base != 0].abs())


def _bad_where_inputs_are_finite(output: torch.Tensor, bad_reads: list[Read]) -> bool:
    bad = ~torch.isfinite(output)
    for read in bad_reads:
        try:
            bad = bad & torch.isfinite(read.tensor)
        except RuntimeError:  # shapes that do not broadcast: no statement about single elements
            return False
    return bad.shape == output.shape and bool(bad.any())


def _is_log_of_a_mask(op: Operation, reads: list[Read]) -> bool:
    """log(mask) with a mask of zeros and ones is a usual way to write an additive mask."""
    maker = reads[0].entry if reads else None
    if op.bare != "log" or maker is None or maker.absmax > 1.0 or maker.origin == "parameter":
        return False
    if maker.op is not None and not maker.op.factory and maker.op.bare not in ("to_copy", "tril", "triu"):
        return False
    values = reads[0].tensor
    return bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any())


def swells(running: Running, entry: Entry) -> tuple[bool, int | None]:
    """Whether a backward op made an enormous gradient, and the earlier birth of one that it passes on."""
    if entry.absmax <= _ENORMOUS:
        return False, None
    parents = [read.entry for read in running.reads if read.entry is not None]
    inherited = [parent.swell for parent in parents if parent.swell is not None]
    if inherited:
        return False, inherited[0]
    # What a division by nearly nothing left in the forward pass does not excuse the gradient it multiplies.
    sound = [p for p in parents if not (p.phase == "forward" and p.op is not None and p.op.bare in _INVERTS)]
    return bool(sound) and entry.absmax > _JUMP * max(parent.absmax for parent in sound), None


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)
