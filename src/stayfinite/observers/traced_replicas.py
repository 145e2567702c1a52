"""Copies of one model inside a script that begin equal, get the same gradient, and do not stay equal."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import ReplicaFacts
from stayfinite.replay import Tracer
from stayfinite.replay.measure import measurable
from stayfinite.replay.op_journal import Entry, OpJournal, memory_key
from stayfinite.replay.sites import place_at

_BACK = 6  # ops from the update back to the gradient that both copies share


class TracedReplicas:
    """Which models were loaded from one another."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._loads: list[tuple[weakref.ref[torch.nn.Module], set[int]]] = []

    def loaded(self, module: torch.nn.Module, state: Any) -> None:
        """load_state_dict(state) ran: remember whose memory the state is."""
        if isinstance(state, Mapping):
            keys = {memory_key(v) for v in state.values() if isinstance(v, torch.Tensor)}
            self._loads.append((weakref.ref(module), {key for key in keys if key is not None}))
            del self._loads[:-32]

    def copied(self, source: Any, copy: Any) -> None:
        """copy.deepcopy ran."""
        if isinstance(source, torch.nn.Module) and isinstance(copy, torch.nn.Module):
            keys = {key for key in _memory(source) if key is not None}
            self._loads.append((weakref.ref(copy), keys))
            del self._loads[:-32]

    def facts(self, models: list[torch.nn.Module]) -> tuple[ReplicaFacts, ...]:
        """The copies whose updates share a gradient; () when there are none (an average, a target network)."""
        for pairs in self._copied(models):
            for one, two in pairs:
                shared = self._updates(one, two) if one.grad is not None and two.grad is not None else None
                if shared is not None:
                    return self._compare(pairs, *shared)
        return ()

    def drifted(self, models: list[torch.nn.Module]) -> bool:
        """A copy and its source have gradients, and are no longer equal: worth a look at how they were updated."""
        for pairs in self._copied(models):
            for one, two in pairs:
                if one.grad is not None and two.grad is not None and one.shape == two.shape:
                    return not torch.equal(one.detach(), two.detach())
        return False

    def _copied(self, models: list[torch.nn.Module]) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """The parameters of each model that was copied, beside those of its copy."""
        for reference, keys in self._loads:
            copy = reference()
            source = next((m for m in models if m is not copy and _memory(m) & keys), None)
            if copy is not None and source is not None:
                yield list(zip(*(torch.nn.Module.parameters(one) for one in (source, copy)), strict=False))

    def _updates(self, one: torch.Tensor, two: torch.Tensor) -> tuple[Entry, Entry] | None:
        """The last writes to both, when one gradient went into both."""
        journal = self._tracer.follower.journal
        first, second = journal.writer(one), journal.writer(two)
        if first is None or second is None or first.op is None or second.op is None:
            return None
        if not (first.op.writes and second.op.writes) or first.op.bare == "copy" or second.op.bare == "copy":
            return None
        of_first, of_second = _upstream(first, journal), _upstream(second, journal)
        if first.id in of_second or second.id in of_first:
            return None  # one follows the other: an average, a target network
        common = of_first & of_second
        shared = [
            e
            for n in common
            if (e := journal.get(n)) is not None
            and e.op is not None
            and e.origin == "activation"
            # Copies that learn from the same data share that data; replicas share a gradient of this parameter.
            and e.shape == tuple(one.shape)
            and one.numel() > 1
        ]
        return (first, second) if shared else None

    def _compare(
        self, pairs: list[tuple[torch.Tensor, torch.Tensor]], first: Entry, second: Entry
    ) -> tuple[ReplicaFacts, ...]:
        drifts = [
            float((a.detach().double() - b.detach().double()).abs().max())
            for a, b in pairs
            if a.shape == b.shape and a.numel() and measurable(a)
        ]
        drift = max(drifts, default=0.0)
        journal = self._tracer.follower.journal
        scales = [_divisors(entry, journal) for entry in (first, second)]
        differ = [next((v for v in own if v not in other), None) for own, other in (scales, scales[::-1])]
        return tuple(
            ReplicaFacts(
                rank=rank,
                scale=differ[rank],
                equal=rank == 0 or drift == 0.0,
                drift=drift if rank else None,
                place=place_at(entry.site),
            )
            for rank, entry in enumerate((first, second))
        )


def _memory(model: torch.nn.Module) -> set[int | None]:
    return {memory_key(parameter) for parameter in torch.nn.Module.parameters(model)}


def _upstream(entry: Entry, journal: OpJournal) -> set[int]:
    found: set[int] = set()
    level = [entry]
    for _ in range(_BACK):
        numbers = {n for one in level for n in one.parents} - found
        found |= numbers
        # A copy (load_state_dict) begins a history of its own.
        level = [known for n in numbers if (known := journal.get(n)) is not None and not _is_copy(known)]
    return found


def _is_copy(entry: Entry) -> bool:
    return entry.op is not None and entry.op.bare == "copy"


def _divisors(entry: Entry, journal: OpJournal) -> list[float]:
    """The numbers by which the gradient was divided on its way to an update."""
    entries = [entry, *(known for n in _upstream(entry, journal) if (known := journal.get(n)) is not None)]
    values = [e.scalars.get("other") for e in entries if e.op is not None and e.op.bare == "div"]
    return [float(v) for v in values if isinstance(v, (int, float))]
