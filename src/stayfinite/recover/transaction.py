"""Transaction: what one step may change before anyone knows whether it is good, and the way back.

Buffers are saved cheaply. Small ones (running statistics, loss marginals) are copied before every step, in one
fused call; large ones (attention masks, position tables, queues) only when their version counter moved.
The version alone is not enough: batch norm's kernel changes its statistics without counting a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy, can_change, copy_all
from stayfinite.shards import local

SMALL = 1 << 16
"""Buffers of at most this many elements are copied before every step."""

_REFRESH_EVERY = 100
"""How often the modules are walked anew, so that modules added later are found. A buffer registered later in a
module that is known is found at once: the number of buffers is counted at every step."""


@dataclass(slots=True)
class _Slot:
    owner: nn.Module
    key: str
    tensor: Tensor | None = None
    saved: Tensor | None = None
    version: int = -1

    def now(self) -> Tensor | None:
        """What the module has there; a scripted module's buffers are no dict, and know no `get`."""
        held = self.owner._buffers
        return held[self.key] if self.key in held else None  # noqa: SIM401


class Transaction:
    """`begin` before a step, `undo` after a refused one; nothing needs doing after a good one."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._slots: list[_Slot] = []
        self._holders: list[dict[str, Tensor | None]] = []
        self._begun = 0
        self._before_update: dict[tuple[int, ...], StateCopy] = {}
        self._of_batch: list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]] = []
        # buffers there were when the last micro-batch began
        self._at_mark: set[tuple[int, str]] | None = None
        self.rng: RngState | None = None

    def begin(self) -> None:
        """Note the random generators and save the buffers as they are now."""
        if self._begun % _REFRESH_EVERY == 0 or self._begun == 1 or self._count() != len(self._slots):
            known = {(id(slot.owner), slot.key): slot for slot in self._slots}
            self._slots = [
                known.get((id(owner), key)) or _Slot(owner, key)
                for _, owner, key in self._state.buffer_slots()
            ]
            modules = (module for model in self._state.models.values() for module in model.modules())
            self._holders = [module._buffers for module in modules]
        self._begun += 1
        self._of_batch, self._at_mark = [], None
        self.rng = RngState.capture()
        self._save_buffers()

    @property
    def buffers_were_written(self) -> bool:
        """A forward pass has been here since `begin`: what counts batches has counted. Asks no device."""
        return any(
            slot.saved is not None and slot.tensor is not None and slot.tensor._version != slot.version
            for slot in self._slots
        )

    @property
    def has_new_buffers(self) -> bool:
        """Buffers that were not there when the step began."""
        return self._count() != len(self._slots)

    def _count(self) -> int:
        """How many buffers there are now."""
        return sum(map(len, self._holders))

    def _save_buffers(self) -> None:
        saved: list[Tensor] = []
        live: list[Tensor] = []
        for slot in self._slots:
            tensor = slot.now()
            same = tensor is slot.tensor
            slot.tensor = tensor
            if tensor is None or (not same and not can_change(tensor)):
                slot.saved = None
                continue
            if same and slot.saved is None:
                continue  # one that cannot change
            if same and tensor.numel() > SMALL and tensor._version == slot.version:
                continue
            if slot.saved is None or not same:
                slot.saved = torch.empty_like(local(tensor), requires_grad=False)
            slot.version = tensor._version
            saved.append(slot.saved)
            live.append(tensor)
        if saved:
            with torch.no_grad():
                copy_all(saved, live)

    def copy_before_update(self, optimizers: Sequence[Optimizer]) -> None:
        """Also copy parameters and optimizer state, so that a bad update itself can be undone."""
        key = tuple(id(optimizer) for optimizer in optimizers)
        if key not in self._before_update:
            self._before_update[key] = StateCopy(self._state, optimizers=optimizers)
        self._before_update[key].take()

    def undo_update(self, optimizers: Sequence[Optimizer]) -> None:
        """Put parameters and optimizer state back as `copy_before_update` found them."""
        self._before_update[tuple(id(optimizer) for optimizer in optimizers)].restore()

    def drop_copy(self, optimizers: Sequence[Optimizer]) -> None:
        """That copy was for once: give its memory back."""
        self._before_update.pop(tuple(id(optimizer) for optimizer in optimizers), None)

    def undo(self, restore_rng: bool) -> None:
        """Put the buffers, and if asked the random generators, back as `begin` found them."""
        live: list[Tensor] = []
        saved: list[Tensor] = []
        for slot in self._slots:
            slot.owner._buffers[slot.key] = slot.tensor
            if slot.tensor is not None and slot.saved is not None:
                live.append(slot.tensor)
                saved.append(slot.saved)
        if live:
            with torch.no_grad():
                copy_all(live, saved)
            for slot in self._slots:
                if slot.tensor is not None and slot.saved is not None:
                    slot.version = slot.tensor._version
        if self._count() != len(self._slots):
            self._remove_buffers_but({(id(slot.owner._buffers), slot.key) for slot in self._slots})
        if restore_rng and self.rng is not None:
            self.rng.restore()

    def _remove_buffers_but(self, known: set[tuple[int, str]]) -> None:
        """Buffers that the step itself registered: before it they did not exist."""
        for holder in self._holders:
            for key in [key for key, _ in holder.items() if (id(holder), key) not in known]:
                del holder[key]

    def mark_batch(self) -> None:
        """Another micro-batch of the same update begins: what it does to buffers can be undone alone."""
        self._at_mark = {(id(holder), key) for holder in self._holders for key, _ in holder.items()}
        self._of_batch = [  # also those that an earlier micro-batch of this update has registered
            (holder, key, tensor, local(tensor).detach().clone())
            for holder in self._holders
            for key, tensor in holder.items()
            if tensor is not None and can_change(tensor)
        ]

    def undo_last_batch(self) -> None:
        """Put the buffers back as the last micro-batch found them."""
        if self._at_mark is None:
            self.undo(restore_rng=False)
            return
        self._remove_buffers_but(self._at_mark)
        for holder, key, tensor, _ in self._of_batch:
            holder[key] = tensor
        with torch.no_grad():
            copy_all([tensor for _, _, tensor, _ in self._of_batch], [saved for *_, saved in self._of_batch])

    def undo_where(self, bad: Tensor) -> None:
        """The same for buffers without asking the host: keeps each buffer unless `bad` is true on its device."""
        with torch.no_grad():
            for slot in self._slots:
                if slot.tensor is None or slot.saved is None:
                    continue
                now = slot.now()
                if now is not slot.tensor and now is not None and now.shape == slot.saved.shape:
                    # the forward pass put a new tensor in its place
                    slot.owner._buffers[slot.key] = torch.where(bad.to(now.device), slot.saved, now)
                elif slot.tensor.numel() <= SMALL or slot.tensor._version != slot.version:
                    mine = local(slot.tensor)
                    mine.copy_(torch.where(bad.to(mine.device), slot.saved, mine))
