"""ReplicatedCopy: what is the same on all ranks, copied once. Rank 0 holds it, and all ranks get it back together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from stayfinite.recover.ranks import Ranks, rank
from stayfinite.recover.state_copy import can_change, copy_all
from stayfinite.shards import is_torch_class

Slot: TypeAlias = tuple[str, Tensor]
"""The name of a tensor, the same on all ranks, and this rank's own."""

_PIECE = 32 << 20
"""Bytes that are sent at a time: what a rank needs for a moment to go back. A larger tensor is sent whole."""
_ALIGNED = 16


def can_be_kept_once(tensor: Tensor) -> bool:
    """Whether its bits can be sent as they are."""
    return is_torch_class(tensor) and tensor.layout is torch.strided and can_change(tensor)


def outline(slots: Sequence[Slot]) -> int:
    """A number that is the same on ranks that have the same slots in the same order."""
    text = "\0".join(f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in slots)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Name, live tensor, and what it was like when it was copied."""

    name: str
    live: Tensor
    dtype: torch.dtype
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class ReplicatedCopy:
    """Ranks other than 0 note what was copied, so that all of them know the order in which it comes back."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._kept: list[_Kept] = []
        self._content: list[Tensor] = []

    def take(self, slots: Sequence[Slot]) -> None:
        """All ranks must give the same slots in the same order, and the same bits."""
        old, self._content = self._content, []
        self._kept = [_Kept(name, tensor, tensor.dtype, tensor.shape) for name, tensor in slots]
        if rank() > 0:
            return
        reused = old if len(old) == len(self._kept) else [None] * len(self._kept)
        content = [
            mine
            if mine is not None and mine.shape == kept.shape and mine.dtype == kept.dtype
            else torch.empty(kept.shape, dtype=kept.dtype)
            for mine, kept in zip(reused, self._kept, strict=True)
        ]
        with torch.no_grad():
            copy_all(content, [kept.live for kept in self._kept])
        self._content = content

    @property
    def exists(self) -> bool:
        return bool(self._kept)

    @property
    def is_here(self) -> bool:
        """This rank can put it back without the others."""
        return len(self._content) == len(self._kept)

    @property
    def nbytes(self) -> int:
        """What this rank holds."""
        return sum(tensor.nbytes for tensor in self._content)

    def restore(self) -> None:
        """Put everything back. Where the ranks act together all must come, else it must be here."""
        self._put_back(range(len(self._kept)), lambda live: True)

    def put_back(self, names: Collection[str], wanted: Collection[Tensor]) -> None:
        """Put back what has these names, the same on all ranks, into those tensors that are wanted here.

        A tensor that the script has put in the place of the copied one is not written to.
        """
        here = {id(tensor) for tensor in wanted}
        numbers = [number for number, kept in enumerate(self._kept) if kept.name in names]
        self._put_back(numbers, lambda live: id(live) in here)

    def _put_back(self, numbers: Sequence[int], is_wanted: Callable[[Tensor], bool]) -> None:
        failure: Exception | None = None
        arrivals = self._sent(numbers) if self._ranks.together else self._own(numbers)
        for kept, content in arrivals:
            try:
                if is_wanted(kept.live):
                    with torch.no_grad():
                        kept.live.copy_(content)
            except Exception as error:  # noqa: BLE001 - the others still wait for the rest; it is raised below
                failure = failure or error
        if failure is not None:
            raise failure

    def _own(self, numbers: Sequence[int]) -> Iterator[tuple[_Kept, Tensor]]:
        if not self.is_here:
            raise RuntimeError("the copy to go back to is with rank 0, and this rank acts without it")
        yield from ((self._kept[number], self._content[number]) for number in numbers)

    def _sent(self, numbers: Sequence[int]) -> Iterator[tuple[_Kept, Tensor]]:
        """What rank 0 sends, in pieces."""
        piece: list[int] = []
        size = 0
        for number in numbers:
            own = self._kept[number].nbytes
            if piece and size + own > _PIECE:
                yield from self._sent_piece(piece)
                piece, size = [], 0
            piece.append(number)
            size += own
        if piece:
            yield from self._sent_piece(piece)

    def _sent_piece(self, numbers: Sequence[int]) -> Iterator[tuple[_Kept, Tensor]]:
        places, end = [], 0
        for number in numbers:
            places.append((end, end + self._kept[number].nbytes))
            end = -(-places[-1][1] // _ALIGNED) * _ALIGNED
        flat = torch.zeros(end, dtype=torch.uint8)
        if self._content:
            for number, (start, stop) in zip(numbers, places, strict=True):
                flat[start:stop] = self._content[number].view(-1).view(torch.uint8)
        flat = self._ranks.from_rank_0(flat)
        for number, (start, stop) in zip(numbers, places, strict=True):
            kept = self._kept[number]
            yield kept, flat[start:stop].view(kept.dtype).view(kept.shape)
