"""Tracer: `with Tracer() as trace: ...` follows forward, backward and optimizer; `trace.failure()` explains.

It costs several times the step it follows, so it runs only on a step that failed (or by request). It keeps no
activation alive: the journal holds numbers and weak references.
"""

from __future__ import annotations

import numbers
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.hooks import listen_to_updates
from stayfinite.replay.follower import Follower
from stayfinite.replay.installing import compiled_code_runs_eagerly, fast_paths_stay, pop_mode, push_mode
from stayfinite.replay.noticed import Arrival, Raised, Retained
from stayfinite.replay.op_journal import NO_ROOTS, Entry
from stayfinite.replay.sites import Site, called_by_user, user_site
from stayfinite.replay.slice import emptied_by, failed_step, find_sink, hidden_births

# Calls that only look: what they compute is no result, and a bad value in it is no failure.
_LOOKS = {"isfinite", "isnan", "isinf", "isposinf", "isneginf", "isreal", "allclose", "isclose", "equal",
          "__repr__", "__format__", "__str__", "is_nonzero", "tolist", "numpy", "__array__"}  # fmt: skip
_BRINGS_IN = {
    "from_numpy", "as_tensor", "asarray", "frombuffer", "tensor", "load", "from_file", "from_dlpack",
}  # fmt: skip
_COPIES = {"tensor", "as_tensor", "asarray"}
_WRITTEN_OUT = 16  # so many numbers may be a literal of the script
_PASSES = {"__get__", "__set__", "size", "dim", "stride", "is_complex", "is_floating_point", "numel", "__len__",
           "__hash__", "data_ptr", "is_contiguous", "type", "ndimension", "element_size"}  # fmt: skip


_RESULTS_KEPT = 32


class _Ops(TorchDispatchMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tracer = self.tracer
        if not tracer.active or tracer.looking or _quiet.depth or tracer.modes[1] is not self:
            return func(*args, **(kwargs or {}))
        return tracer.follower.run(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.tracer.modes[0] is not self:
            return func(*args, **(kwargs or {}))
        return self.tracer._called(func, args, kwargs or {})


class Tracer:
    """Follows everything that torch does in one thread while it is entered."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.active = False
        self.looking = 0
        self._retained = Retained()
        self.modes = _Calls(self), _Ops(self)
        self._entered: dict[threading.Thread, tuple[_Calls, _Ops]] = {}  # numbers of threads come again
        self._thread: threading.Thread | None = None
        self._undo: list[Callable[[], object]] = []

    # -- on and off --------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to follow; also possible in the middle of a script."""
        if self.active:
            return
        self.active = True
        _LIVING.add(self)
        self.follower.modules.watch()
        self._enter_modes()
        self._undo = [
            compiled_code_runs_eagerly(),
            fast_paths_stay(),
            self._leave_modes,
            self.follower.modules.stop,
            listen_to_updates(self._optimizer_begins, self._optimizer_ends).stop,
        ]

    def _enter_modes(self) -> None:
        self._thread = threading.current_thread()
        self._entered[self._thread] = self.modes
        for mode in self.modes:
            push_mode(mode)

    def _leave_modes(self) -> None:
        for mode in reversed(self._entered.pop(threading.current_thread(), ())):
            pop_mode(mode)

    def follow_this_thread(self) -> None:
        """From here on; modes are a thread's own, and those of the thread that was followed only pass on now."""
        if self.active and self._thread is not threading.current_thread():
            self._leave_modes()
            self.modes = _Calls(self), _Ops(self)
            self._enter_modes()

    def stop(self) -> None:
        """Stop following; what was seen stays."""
        self.active = False
        for undo in self._undo:
            undo()
        self._undo = []

    def _optimizer_begins(self, optimizer: Any) -> None:
        self.follower.in_optimizer = True

    def _optimizer_ends(self, optimizer: Any) -> None:
        self.follower.in_optimizer = False

    # -- calls of the script -----------------------------------------------------------------------------

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        if not self.active or self.looking or _quiet.depth or name in _PASSES:
            return func(*args, **kwargs)  # what stayfinite computes itself is no call of the script
        if name in _LOOKS:
            with self.only_looking():
                result = func(*args, **kwargs)
                if name == "isnan" and args and self.follower.bad_seen:
                    self.follower.noticed.look(args[0], result, user_site())
                return result
        follower = self.follower
        outer, outer_autocast, brought_in = follower.call, follower.autocast, follower.brings_in
        follower.call = None if name == "backward" else func
        follower.autocast = _autocast_dtype(args)
        follower.brings_in = _least_of_data(args[0]) if name in _COPIES and args else None
        try:
            result = func(*args, **kwargs)
        finally:
            follower.call, follower.autocast, follower.brings_in = outer, outer_autocast, brought_in
        if name == "retain_grad" and args:
            self._retained.add(args[0])
        elif name == "backward":
            self._look_at_retained()
        elif (
            name in _BRINGS_IN
            and isinstance(result, torch.Tensor)
            and follower.journal.writer(result) is None
        ):
            follower.call = func
            with self.only_looking():
                follower.foreign(result, None, user_site(), "forward")
            follower.call = outer
        if follower.bad_seen and outer is None and isinstance(result, (torch.Tensor, tuple, list)):
            self._mark_visible(result)
        return result

    def _mark_visible(self, result: Any) -> None:
        tensors = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        journal = self.follower.journal
        bad = [(t, entry) for t in tensors if (entry := journal.writer(t)) is not None and entry.bad]
        if bad and called_by_user(2):
            for tensor, entry in bad:
                entry.visible, entry.step = True, self.follower.step
                entry.loss_like = tensor.numel() == 1 and tensor.requires_grad

    def _look_at_retained(self) -> None:
        for gradient in self._retained.gradients():
            entry = self.follower.journal.writer(gradient)
            if entry is not None and (entry.bad or entry.swell is not None):
                self.follower.noticed.arrive("gradient", None, entry)

    # -- what others tell the tracer ---------------------------------------------------------------------

    def note_batch(self, batch: Any) -> None:
        """Tensors that a DataLoader hands out now."""
        if not self.active:
            return
        with self.only_looking():
            tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
            self.follower.modules.note_batch(tensors)
            for tensor in tensors:
                if self.follower.journal.writer(tensor) is None:
                    self.follower.foreign(tensor, None, user_site(), "data", "batch")

    @contextmanager
    def only_looking(self) -> Iterator[None]:
        """What is computed inside is no part of the trace."""
        self.looking += 1
        try:
            yield
        finally:
            self.looking -= 1

    @contextmanager
    def following_again(self) -> Iterator[None]:
        """Inside `only_looking`: what is computed in here belongs to the trace after all."""
        looking, self.looking = self.looking, 0
        try:
            yield
        finally:
            self.looking = looking

    def written_at(self, tensor: torch.Tensor) -> Site | None:
        """The line that last wrote into this tensor's memory, if it was traced."""
        entry = self.follower.journal.writer(tensor)
        return entry.site if entry is not None and entry.op is not None else None

    def roots_of(self, tensor: torch.Tensor) -> frozenset[int]:
        """The numbers of the births whose bad values are in this tensor's memory."""
        entry = self.follower.journal.writer(tensor)
        return entry.roots if entry is not None else NO_ROOTS

    def next_step(self, step: int) -> None:
        self.follower.step = step

    # -- the answer --------------------------------------------------------------------------------------

    def failure(
        self, sink: torch.Tensor | None = None, kind: str = "loss", name: str | None = None
    ) -> FailedStep | None:
        """The evidence about the bad value in `sink`, or about the first that reached a gradient or parameter.

        None when nothing bad arrived anywhere.
        """
        with self.only_looking():
            if sink is not None:
                entry = find_sink(self.follower, sink)
                if entry is None:
                    return None
                return failed_step(self.follower, entry, kind, name=name, tensor=sink)
            for arrival in self.follower.noticed.arrivals:
                entry = self.follower.journal.get(arrival.entry)
                if entry is not None:
                    return failed_step(self.follower, entry, arrival.kind, name=arrival.name)
        return None

    def failure_at(self, arrival: Arrival) -> FailedStep | None:
        """The evidence about a bad value that reached a gradient, a parameter or a buffer."""
        entry = self.follower.journal.get(arrival.entry)
        if entry is None:
            return None
        with self.only_looking():
            return failed_step(self.follower, entry, arrival.kind, name=arrival.name)

    def failure_of(self, failure: Failure, raised: Raised | None = None) -> FailedStep | None:
        """The evidence about an exception: the op that raised it, or the newest bad value."""
        with self.only_looking():
            entry = self.follower.journal.get(raised.entry) if raised is not None else None
            if raised is not None and entry is not None:
                entry = emptied_by(self.follower, raised.birth, entry) or entry
                step = failed_step(self.follower, entry, "exception", failure=failure)
                return step if step.births else _only(step, raised.birth)
            newest = next(iter(self.follower.journal.latest_bad()), None)
            if newest is not None:
                return failed_step(self.follower, newest, "exception", failure=failure)
            return None

    def benign(self) -> tuple[TracedBirth, ...]:
        """Births that something hid: they reached no gradient and no parameter."""
        return hidden_births(self.follower)

    def results(self) -> list[tuple[Entry, FailedStep]]:
        """Bad values that nothing was computed from, newest first: handed to the script, or a gradient still held."""
        journal = self.follower.journal
        alive = journal.alive_now()
        with self.only_looking():
            return [
                (entry, failed_step(self.follower, entry, "loss" if entry.loss_like else "result"))
                for entry in journal.latest_bad()
                if not entry.consumed
                and (
                    entry.visible
                    if entry.phase == "forward"
                    else entry.node is not None and entry.id in alive
                )
            ][:_RESULTS_KEPT]


def _least_of_data(given: Any) -> int | None:
    """How many values make a copy of this data, and no literal; None for a single number, which is one."""
    if hasattr(given, "__array_interface__"):
        return 2
    return None if isinstance(given, numbers.Number) else _WRITTEN_OUT  # a list, a tuple, a deque of returns


def _only(step: FailedStep, birth: Any) -> FailedStep:
    return replace(step, births=(birth,), phase="data" if birth.facts.get("invalid") else step.phase)


def _autocast_dtype(args: Any) -> str | None:
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    if device not in ("cpu", "cuda", "xpu", "mps"):
        return None
    if not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


class _Quiet(threading.local):
    depth = 0


_quiet = _Quiet()


@contextmanager
def unfollowed() -> Iterator[None]:
    """What is computed inside, in this thread, is no part of any trace: somebody only looks."""
    before = _quiet.depth
    try:
        _quiet.depth = before + 1
        yield
    finally:
        _quiet.depth = before


def is_unfollowed() -> bool:
    return _quiet.depth > 0


_LIVING: weakref.WeakSet[Tracer] = weakref.WeakSet()


def is_followed() -> bool:
    """Somebody follows this process op by op already: a second run of a script that has a guard of its own."""
    return any(tracer.active for tracer in list(_LIVING))


def _forget_in_child() -> None:
    # A forked DataLoader worker inherits the modes; it must not trace into a journal nobody reads.
    for tracer in list(_LIVING):
        tracer.active = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
