"""Follows every op: what it read, what it wrote, and whether a bad value was born in it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.replay import evidence
from stayfinite.replay.facts.tables import columns
from stayfinite.replay.living import living_models
from stayfinite.replay.measure import (
    arrived,
    dtype_name,
    is_bad,
    is_plain,
    magnitude,
    measurable,
    shape_of,
    stored,
)
from stayfinite.replay.modules import ModuleStack, Names
from stayfinite.replay.noticed import COMPARES, Noticed, Raised
from stayfinite.replay.op_journal import NO_ROOTS, Entry, OpJournal
from stayfinite.replay.operations import Operation, named_arguments, operation, plain_arguments, tensors_of
from stayfinite.replay.running import (
    OVERWRITES,
    Read,
    Running,
    before_write,
    least_made,
    made_whole,
    outputs,
    swells,
    transition,
)
from stayfinite.replay.sequence import ForwardOps
from stayfinite.replay.sites import Site, user_site

_ROOTS_KEPT = 16
_RESCALED_BACK = 8  # ops between where numbers came in and where the script writes among them
_SOON = frozenset({-1})  # a place among the bad entries for one whose own number is not known yet


class Follower:
    """The state of a trace. `Tracer` feeds it ops; nothing here installs anything."""

    def __init__(self) -> None:
        self.journal = OpJournal()
        self.modules = ModuleStack()
        self.noticed = Noticed()
        self.births: dict[int, TracedBirth] = {}
        self.step = 0
        self.in_optimizer = False
        self.call: Any = None
        self.autocast: str | None = None
        self.brings_in: int | None = None  # torch.tensor is copying: so many values are data, and no literal
        self.bad_seen = False
        self.ops = 0
        self.trouble: list[str] = []
        self._forward = ForwardOps()
        self._names: Names | None = None
        self._unnamed = self._roots_named = 0
        self._deliberate: dict[tuple[str, Site | None], TracedBirth] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one op and follow it."""
        op = operation(func)
        if op.ignored:
            return func(*args, **kwargs)
        self.ops += 1
        node = torch._C._current_autograd_node()
        phase, site, forward = self._where(node)
        before = before_write(op, args) if op.writes else args
        running = Running(func, op, before, kwargs, site, phase, node, forward)
        with self._own_trouble():
            running.reads = self._read(running, args)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            with self._own_trouble():
                self._note_raise(running, error)
            raise
        with self._own_trouble():
            for index, output in outputs(op, args, kwargs, result, running.reads):
                self._write(running.at(index).behind(output), output)
            if self.noticed.raised:
                self.noticed.succeeded(op.bare)
            if running.accumulates:
                self._note_gradient(running)
            if op.bare in COMPARES and self.bad_seen:
                self.noticed.compare(running, args, result)
        return result

    @contextmanager
    def _own_trouble(self) -> Iterator[None]:
        """A defect of the tracer must not become a failure of the script: it is kept and reported."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours and not the script's
            if not self.trouble:
                self.trouble = traceback.format_exception(error)

    def _where(self, node: Any) -> tuple[str, Site | None, int | None]:
        """The phase, the line, and in the backward pass the entry of the forward op."""
        if self.in_optimizer and node is None and not torch.is_grad_enabled():
            return "optimizer", user_site(), None  # with gradients, it evaluates the loss
        if node is None:
            return "forward", user_site(), None
        forward = self._forward.find(node)
        inner = user_site(inside_backward=True)
        if inner is not None:
            # Grad mode is on while a checkpoint is computed again, off in a custom Function's backward.
            return ("forward" if torch.is_grad_enabled() else "backward"), inner, forward
        known = self.journal.get(forward) if forward is not None else None
        return "backward", (known.site if known is not None else user_site()), forward

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self, running: Running, args: Sequence[Any]) -> list[Read]:
        op, reads = running.op, list[Read]()
        for argument, value in named_arguments(op, args, running.kwargs):
            overwritten = argument in op.writes and (op.bare in OVERWRITES or argument == "out")
            counts = not overwritten and not op.shape_only
            for name, given in tensors_of(argument, value):
                come = arrived(given)
                sent = come is not given  # its memory tells nothing of it
                tensor = stored(come)
                entry = None if sent else self.journal.writer(tensor)
                if entry is None and is_plain(tensor) and not overwritten:
                    made_by, origin = op if op.factory else None, "rank" if sent else None
                    # torch.tensor(array): nobody wrote these values down. torch.from_numpy is no call that is seen.
                    least = 1 if self.call is None and op.bare == "lift_fresh" else self.brings_in
                    if least is not None and _holds_data(tensor, least):
                        made_by = None
                    entry = self.foreign(tensor, made_by, running.site, running.phase, origin)
                    entry.sparse = tensor is not come
                bad = nan = False
                if entry is not None and counts and measurable(tensor):
                    fresh = entry.op is not None and entry.op.uninitialised and not op.view
                    if entry.bad or fresh:
                        bad = not math.isfinite(magnitude(tensor))
                        nan = bad and bool(torch.isnan(tensor).any())
                        if bad and not entry.bad:
                            self._read_uninitialised(entry, tensor)
                reads.append(Read(name, tensor, entry, bad, nan, counts))
        return reads

    def foreign(
        self,
        tensor: torch.Tensor,
        op: Operation | None,
        site: Site | None,
        phase: str,
        origin: str | None = None,
    ) -> Entry:
        """A tensor that no traced op wrote: a literal, a parameter, a batch, something from numpy."""
        if origin is None:
            leaf = isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)
            origin = "constant" if op is not None else "parameter" if leaf else "outside"
        entry = Entry(op, origin, site, phase)
        entry.learnt = origin == "parameter"
        entry.call, entry.module = self.call, self.modules.path()
        entry.dtype, entry.shape = dtype_name(tensor.dtype), shape_of(tensor)
        if measurable(tensor):
            entry.absmax = magnitude(tensor)
        if math.isfinite(entry.absmax):
            return self.journal.add(entry, tensor)
        entry.origin, entry.name = self.name_of(tensor) or (origin, None)
        self._add_root(entry, tensor)
        state = entry.origin in ("parameter", "buffer")
        self.births[entry.id] = TracedBirth(
            evidence.birth_of(entry, tensor, self.modules.batch_size),
            "data" if entry.origin == "batch" else "state" if state else phase,
            "deliberate" if op is not None else "outside",
            output=evidence.operand("output", tensor, entry, self.journal),
            facts=columns(tensor),
            autocast=self.autocast,
        )
        return entry

    def _add_root(self, entry: Entry, tensor: torch.Tensor) -> None:
        self.bad_seen = True
        entry.roots = _SOON
        self.journal.add(entry, tensor)
        entry.roots = frozenset({entry.id})

    def _read_uninitialised(self, entry: Entry, tensor: torch.Tensor) -> None:
        entry.roots = frozenset({entry.id})
        self.bad_seen = True
        known = self.name_of(tensor)
        entry.name = known[1] if known else None
        self.births[entry.id] = TracedBirth(
            evidence.birth_of(entry, tensor, self.modules.batch_size),
            "state",
            "uninitialised",
            output=evidence.operand("output", tensor, entry, self.journal),
        )

    # -- writing -----------------------------------------------------------------------------------------

    def _write(self, running: Running, written: torch.Tensor) -> None:
        output = stored(written)
        op, entry = running.op, self._entry(running, output)
        entry.sparse = output is not written
        how: str | None = None
        if measurable(output) and not op.uninitialised:
            entry.absmax = magnitude(output)
            entry.least = least_made(running, output) if math.isfinite(entry.absmax) else None
            if not math.isfinite(entry.absmax):
                bad = (read.entry.roots for read in running.reads if read.bad and read.value and read.entry)
                entry.roots = frozenset().union(*bad)
                how = transition(running, entry, output)
                self.bad_seen = True
            elif op.bare in ("arange", "to_copy"):
                self.noticed.round(running, output, entry.absmax)
            elif running.phase == "backward":
                born, entry.swell = swells(running, entry)
                how = "amplified" if born else None
        elif self.bad_seen:
            entry.cast = made_whole(running, output)
        previous = self.journal.writer(output) if op.writes else None
        if not entry.roots and how is None and previous is not None and not _covers_its_memory(output):
            # the rest of the memory keeps what was there before
            entry.roots, entry.parents = previous.roots, (*entry.parents, previous.id)
        if len(entry.roots) > _ROOTS_KEPT:
            entry.roots = frozenset(sorted(entry.roots)[:_ROOTS_KEPT])
        if how is not None and not entry.roots:
            entry.roots = _SOON
        entry.weight = bool(op.writes) and output.requires_grad and output.is_leaf
        self.journal.add(entry, output)
        self._mark_consumed(running, entry, output)
        if how is not None:
            self._born(running, entry, how, output)
        if entry.roots and previous is not None and not _covers_its_memory(output):
            self._note_writing_into_data(entry, previous)
        self._forward.remember(entry)  # also in a backward pass that is differentiated again
        if entry.roots and op.writes and not running.accumulates:
            known = self.name_of(output)
            if known is not None or (output.requires_grad and output.is_leaf):
                kind, name = known or ("parameter", None)
                self.noticed.arrive(kind, name, entry)

    def _entry(self, running: Running, output: torch.Tensor) -> Entry:
        op, reads = running.op, running.reads
        origin = "random" if op.random else "constant" if not reads or op.factory else "activation"
        entry = Entry(op, origin, running.site, running.phase)
        entry.call, entry.module, entry.autocast = self.call, self.modules.path(), self.autocast
        entry.dtype, entry.shape = dtype_name(output.dtype), shape_of(output)
        sources = [read.entry for read in reads if read.entry is not None and read.value]
        entry.parents = tuple(source.id for source in sources)
        entry.learnt = any(source.learnt for source in sources) or any(r.tensor.requires_grad for r in reads)
        entry.scalars = plain_arguments(op, running.args, running.kwargs)
        if running.node is not None and running.phase == "backward":
            entry.node, entry.forward = running.node.name(), running.forward
            known = self.journal.get(running.forward) if running.forward is not None else None
            if known is not None:
                entry.call, entry.module = known.call, known.module
        return entry

    def _note_writing_into_data(self, entry: Entry, previous: Entry) -> None:
        """`x[3, 0] = inf`, where x is a table of numbers: no mask is made so."""
        written = [n for n in entry.roots if n in self.births and self.births[n].transition == "deliberate"]
        if not written or not self._is_data(previous):
            return
        for number in written:
            birth = self.births[number]
            if birth.output is not None and (birth.output.posinf or birth.output.summary.nan):
                self.births[number] = replace(birth, facts={**birth.facts, "into_data": True})

    def _is_data(self, entry: Entry | None) -> bool:
        """Drawn, loaded, or brought in, and at most rescaled and copied since."""
        for _ in range(_RESCALED_BACK):
            if entry is None or entry.learnt:
                return False
            if entry.origin in ("random", "outside", "batch"):
                return True
            if len(entry.parents) != 1:
                return False
            entry = self.journal.get(entry.parents[0])
        return False

    def _mark_consumed(self, running: Running, entry: Entry, output: torch.Tensor) -> None:
        if not measurable(output):
            return  # an index, a flag: looking at a value is not using it
        for read in running.reads:
            if read.entry is not None and read.value:
                read.entry.consumed = True
                if read.bad and not entry.roots:
                    read.entry.hidden_by.append(entry.id)

    def _born(self, running: Running, entry: Entry, how: str, output: torch.Tensor) -> None:
        if how == "amplified":
            entry.roots, entry.swell = NO_ROOTS, entry.id
        else:
            entry.roots = (entry.roots - _SOON) | {entry.id}
            forward = self.journal.get(entry.forward) if entry.forward is not None else None
            if forward is not None and forward.bad:
                # The forward value was bad already and something hid it: that is where it began.
                entry.roots |= forward.roots
                entry.parents = (*entry.parents, forward.id)
        key = (running.op.name, entry.site)
        if how == "deliberate" and key in self._deliberate:
            self.births[entry.id] = self._deliberate[key]
            return
        for read in running.reads:
            source = read.entry
            # also after an update that was traced
            trained = read.tensor.requires_grad and read.tensor.is_leaf
            if (
                source is not None
                and source.name is None
                and (trained or source.origin in ("parameter", "outside"))
            ):
                source.origin, source.name = self.name_of(read.tensor) or (source.origin, None)
        saved = self._forward.saved(running.node) if entry.phase == "backward" else {}
        born = evidence.gather(running, entry, how, output, self.journal, self.modules.batch_size, saved)
        self.births[entry.id] = born
        if how == "deliberate":
            self._deliberate[key] = born

    # -- what is worth remembering -----------------------------------------------------------------------

    def _note_gradient(self, running: Running) -> None:
        for read in running.reads:
            if read.entry is not None and (read.bad or read.entry.swell is not None):
                known = self.name_of(running.node.variable)
                self.noticed.arrive("gradient", known[1] if known else None, read.entry)

    def _note_raise(self, running: Running, error: Exception) -> None:
        reads = running.reads
        entry = (
            self._entry(running, reads[0].tensor)
            if reads
            else Entry(running.op, "activation", running.site, "")
        )
        known = [(r.entry, r.bad) for r in reads if r.entry is not None]
        entry.roots = frozenset().union(*(e.roots for e, bad in known if bad), *(e.cast for e, _ in known))
        self.journal.add(entry, None)
        born = evidence.gather(running, entry, "raised", None, self.journal, self.modules.batch_size, {})
        self.noticed.raised.append(Raised(born, error, entry.id, self.step, running.op.bare))

    def name_of(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """("parameter", "head.weight") for a tensor of a living model."""
        found = self._names.find(tensor) if self._names is not None else None
        if found is not None:
            return found
        self._unnamed += 1
        roots = list(self.modules.roots)
        if len(roots) == self._roots_named and not _is_power_of_8(self._unnamed):
            # going through all objects takes long: the 1st, 8th, 64th ... time, and for a new model
            return None
        self._names, self._roots_named = Names([*roots, *living_models()]), len(roots)
        return self._names.find(tensor)


def _is_power_of_8(number: int) -> bool:
    return number & (number - 1) == 0 and number.bit_length() % 3 == 1


def _covers_its_memory(tensor: torch.Tensor) -> bool:
    return not is_plain(tensor) or tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()


def _holds_data(tensor: torch.Tensor, least_values: int) -> bool:
    """NaN or Inf among so many values; one of -inf alone is a mask, which somebody meant."""
    if tensor.numel() < least_values or not is_bad(tensor):
        return False
    return not tensor.dtype.is_complex and bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())
