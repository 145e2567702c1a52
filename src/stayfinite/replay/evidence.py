"""Gathers the evidence at a birth: operands with their origins and producers, facts, the float32 verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Birth, TensorSummary
from stayfinite.findings.subjects.traced_birth import Operand, Plain, Producer, TracedBirth
from stayfinite.replay import facts
from stayfinite.replay.float32 import HALF, in_float32
from stayfinite.replay.measure import Account, account, bad_samples, first_bad_index, is_plain, stored
from stayfinite.replay.op_journal import Entry, OpJournal
from stayfinite.replay.operations import Operation, named_arguments, plain_arguments, tensors_of
from stayfinite.replay.running import Running
from stayfinite.replay.sites import in_fetch

_PRODUCERS_BACK = 5
_PRODUCERS_KEPT = 12
_WALKED = 20_000
_LARGE_GIVEN = 1e6
_OPERANDS_KEPT = 8


torch.overrides.resolve_name(torch.log)  # fills what torch keeps of its names
_resolved = getattr(torch.overrides.resolve_name, "__wrapped__", torch.overrides.resolve_name)
"""Without the warning filters that torch puts around it: with them, Python shows the script's own warnings again."""


def call_name(call: Any, op: Operation | None) -> str:
    """The name of the function the script called: torch.log, Tensor.sum, F.cross_entropy."""
    if call is None:
        return op.name if op is not None else "outside"
    if isinstance(call, str):
        return call
    own = getattr(call, "__name__", "")
    name = _resolved(call) or own or str(call)
    if name.rpartition(".")[0] == "torch" and getattr(torch, own, None) == call:
        name = f"torch.{own}"  # of equal functions, such as mm and spmm, torch knows the name of one
    return (
        name.replace("torch.nn.functional.", "F.")
        .replace("torch.Tensor.", "Tensor.")
        .removesuffix(".__call__")
    )


def producer(entry: Entry, journal: OpJournal, distance: int) -> Producer:
    """An entry as a rule sees it."""
    parents = [journal.get(number) for number in entry.parents]
    return Producer(
        op=entry.op.name if entry.op else entry.origin,
        call=call_name(entry.call, entry.op),
        file=entry.site.file if entry.site else None,
        line=entry.site.line if entry.site else None,
        module=entry.module,
        scalars=entry.scalars,
        distance=distance,
        absmax=entry.absmax,
        least=entry.least,
        inputs=tuple(parent.dtype for parent in parents if parent is not None),
        learnt=entry.learnt,
        in_backward=entry.phase == "backward",
        number=entry.id,
        made_of=entry.parents,
        position=entry.site.position if entry.site else -1,
    )


def producers_of(entry: Entry | None, journal: OpJournal) -> tuple[Producer, ...]:
    """The ops upstream of a tensor, nearest first."""
    found: list[Producer] = []
    level, seen = [entry] if entry is not None else [], set[int]()
    for distance in range(1, _PRODUCERS_BACK + 1):
        following: list[Entry] = []
        for one in level:
            if one is None or one.id in seen or len(found) >= _PRODUCERS_KEPT:
                continue
            seen.add(one.id)
            if one.op is not None:
                found.append(producer(one, journal, distance))
            following.extend(parent for number in one.parents if (parent := journal.get(number)) is not None)
        level = following
    return tuple(found)


def summary(name: str, numbers: Account) -> TensorSummary:
    return TensorSummary(
        name=name,
        shape=numbers.shape,
        dtype=numbers.dtype,
        min=numbers.min,
        max=numbers.max,
        zeros=numbers.zeros,
        nan=numbers.nan,
        inf=numbers.posinf + numbers.neginf,
        histogram=numbers.histogram,
    )


def operand(name: str, tensor: torch.Tensor, entry: Entry | None, journal: OpJournal) -> Operand:
    """A tensor in numbers, with where it came from."""
    numbers = account(tensor)
    return Operand(
        summary=summary(name, numbers),
        origin=entry.origin if entry is not None else "outside",
        name=entry.name if entry is not None else None,
        negatives=numbers.negatives,
        posinf=numbers.posinf,
        neginf=numbers.neginf,
        absmax=numbers.absmax,
        smallest_positive=numbers.smallest_positive,
        requires_grad=tensor.requires_grad,
        learnt=entry is not None and entry.learnt,
        in_backward=entry is not None and entry.phase == "backward",
        producers=producers_of(entry, journal),
    )


def birth_of(entry: Entry, output: torch.Tensor | None, batch_size: int | None) -> Birth:
    """The part that incident.json shows, without inputs."""
    numbers = account(output) if output is not None else None
    site = entry.site
    placed = output if output is not None and is_plain(output) and not entry.sparse else None
    return Birth(
        op=entry.op.name if entry.op else entry.origin,
        call=call_name(entry.call, entry.op),
        file=site.file if site else None,
        line=site.line if site else None,
        source=site.source if site else None,
        function=site.function if site else None,
        module=entry.module,
        kind="nan" if numbers and numbers.nan else "inf",
        nan=numbers.nan if numbers else 0,
        inf=numbers.posinf + numbers.neginf if numbers else 0,
        numel=output.numel() if output is not None else 0,
        first_index=first_bad_index(placed) if placed is not None else (),
        dtype=entry.dtype,
        samples=bad_samples(placed, batch_size) if placed is not None and _has_samples(entry, placed) else (),
    )


def _has_samples(entry: Entry, tensor: torch.Tensor) -> bool:
    """Rows of weights, of moments, or of one sample, and channels of running statistics, are no samples."""
    statistics = entry.op is not None and entry.op.bare.endswith("batch_norm") and tensor.dim() == 1
    loaded = (
        entry.op is None and entry.origin != "batch"
    )  # a table, a file of weights: the batch tells for itself
    return entry.phase != "optimizer" and not statistics and not loaded and not in_fetch()


def gather(
    running: Running,
    entry: Entry,
    transition: str,
    output: torch.Tensor | None,
    journal: OpJournal,
    batch_size: int | None,
    saved: Mapping[str, torch.Tensor],
) -> TracedBirth:
    """Everything about the birth that `entry` is."""
    op, args, kwargs = running.op, running.args, running.kwargs
    sources = {read.name: read.entry for read in running.reads}
    given = {
        name: tensor
        for argument, value in named_arguments(op, args, kwargs)
        for name, tensor in tensors_of(argument, value)
    }
    tensors = {name: tensor for name, tensor in given.items() if is_plain(tensor)}
    operands = tuple(
        operand(name, values, sources.get(name), journal)
        for name, tensor in list(given.items())[:_OPERANDS_KEPT]
        if is_plain(values := stored(tensor))
    )
    scalars = plain_arguments(op, args, kwargs)
    forward = journal.get(entry.forward) if entry.forward is not None else None
    made_by = {o.summary.name: o.producers for o in operands}
    shown = birth_of(entry, output, batch_size)
    return TracedBirth(
        birth=replace(shown, inputs=tuple(o.summary for o in operands)),
        phase=entry.phase,
        transition=transition,
        operands=operands,
        output=operand("output", output, entry, journal) if output is not None else None,
        scalars=scalars,
        facts={
            **facts.measure(op.bare, facts.Call(tensors, scalars, output, made_by)),
            **_chosen(running, output),
            **(_largest_given(entry, journal) if transition == "finite->inf" else {}),
        },
        autocast=entry.autocast,
        float32=in_float32(running) if output is not None and output.dtype in HALF else None,
        node=entry.node,
        forward_op=forward.op.name if forward is not None and forward.op is not None else None,
        saved=tuple(operand(name, tensor, journal.writer(tensor), journal) for name, tensor in saved.items()),
    )


def _largest_given(entry: Entry, journal: OpJournal) -> dict[str, Plain]:
    """The largest finite number that came in from outside and went into this value, however many ops ago: a reward
    that a loop discounts, a target that is scaled before it meets the output."""
    waiting, seen = list(entry.parents), set[int]()
    best: Entry | None = None
    while waiting and len(seen) < _WALKED:
        number = waiting.pop()
        one = journal.get(number)
        if one is None or number in seen:
            continue
        seen.add(number)
        if one.weight:
            continue  # what was loaded into a weight, or moved it, is no number that was given to this step
        waiting.extend(one.parents)
        # a buffer or a loaded weight is no such number, and its name is not known here
        brought_in = one.origin == "batch" or (one.op is not None and one.op.bare == "lift_fresh")
        if one.learnt or not brought_in:
            continue
        if math.isfinite(one.absmax) and (best is None or one.absmax > best.absmax):
            best = one
    if best is None or best.absmax < _LARGE_GIVEN:
        return {}
    at = f"{Path(best.site.file).name}:{best.site.line}" if best.site is not None else "an unknown line"
    return {"given_absmax": best.absmax, "given_at": at}


def _chosen(running: Running, output: torch.Tensor | None) -> dict[str, Plain]:
    """In the backward pass: at how many bad elements the gradient from above is 0, and at how many it is not."""
    if running.phase != "backward" or output is None or not is_plain(output):
        return {}
    for read in running.reads:
        if read.entry is None or read.entry.phase != "backward" or not read.value:
            continue
        bad = ~torch.isfinite(output)
        try:
            left_out = (read.tensor == 0).expand_as(bad)
        except RuntimeError:  # a reduction or a product of matrices: elements do not correspond
            continue
        return {"unselected": int((bad & left_out).sum()), "selected": int((bad & ~left_out).sum())}
    return {}
