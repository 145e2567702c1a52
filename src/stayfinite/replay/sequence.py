"""From a backward node to the forward op that made it, by the number autograd gives every node."""

from __future__ import annotations

from typing import Any

import torch

from stayfinite.replay.measure import is_plain
from stayfinite.replay.op_journal import Entry

_KEPT = 100_000


class ForwardOps:
    """The journal entry of the forward op for each autograd node."""

    def __init__(self) -> None:
        self._entries: dict[int, int] = {}
        self._hooked: set[int] = set()

    def remember(self, entry: Entry) -> None:
        """Autograd numbers the node of an op just before the op runs: the first op to see a number owns it."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number < 0 or number in self._entries or not torch.is_grad_enabled():
            return
        self._entries[number] = entry.id
        hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if hooks is not None and hooks(True) is not None:
            self._hooked.add(number)
        if len(self._entries) > _KEPT:
            for old in list(self._entries)[: _KEPT // 2]:
                del self._entries[old]
                self._hooked.discard(old)

    def find(self, node: Any) -> int | None:
        return self._entries.get(node._sequence_nr())

    def saved(self, node: Any) -> dict[str, torch.Tensor]:
        """What the forward op kept for its backward; not where hooks would have to compute it again."""
        number = node._sequence_nr() if node is not None else -1
        if number in self._hooked or number not in self._entries:
            return {}
        found: dict[str, torch.Tensor] = {}
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    value = getattr(node, name)
                except RuntimeError:  # freed already
                    continue
                if isinstance(value, torch.Tensor) and is_plain(value):
                    found[name.removeprefix("_saved_")] = value.detach()
        return found
