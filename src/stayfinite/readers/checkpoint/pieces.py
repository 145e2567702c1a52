"""A tensor on disk, piece by piece: small buffers are filled again and again, whatever the tensor's size.

Reading into one page-aligned buffer that stays in the cache is faster than mapping the file: no page
faults, and the file's pages do not count as memory of this process.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from stayfinite.readers.checkpoint.contents import ITEM_SIZE, TensorRef, row_major
from stayfinite.readers.checkpoint.source import Unreadable, WindowSource

if TYPE_CHECKING:
    import torch

CHUNK, MOST_CHUNK = 2 << 20, 4 << 20

# Types that torch can hold but not reduce over are looked at as integers of the same width.
_VIEWED_AS = {"uint16": "int16", "uint32": "int32", "uint64": "int64", "bool": "uint8"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension in memory order: its size, its stride in the file, and its stride in logical order."""

    size: int
    stride: int
    logical: int


@dataclass(slots=True)
class Piece:
    """Some values of a tensor, and how their positions map to flat positions in logical order."""

    values: torch.Tensor
    base: int
    logical_strides: tuple[int, ...]

    def logical(self, index: Any) -> int:
        """The smallest logical flat position among rows of `index`, as `nonzero()` gives them."""
        if not self.logical_strides:
            return self.base
        strides = index.new_tensor(self.logical_strides)
        return self.base + int((index * strides).sum(dim=1).min())


class _Buffer(threading.local):
    """One page-aligned buffer per thread: copying to an unaligned one is four times slower on some machines."""

    def __init__(self) -> None:
        self._view = memoryview(mmap.mmap(-1, CHUNK))

    def part(self, nbytes: int) -> memoryview:
        """Its first bytes; it grows up to MOST_CHUNK. What is larger gets memory of its own."""
        if nbytes > MOST_CHUNK:
            return memoryview(bytearray(nbytes))
        if nbytes > len(self._view):
            self._view = memoryview(mmap.mmap(-1, MOST_CHUNK))
        return self._view[:nbytes]


_buffer = _Buffer()


def load(ref: TensorRef, start: int, count: int) -> torch.Tensor:
    """`count` elements of the storage from element `start`; the next call on this thread overwrites them."""
    import torch

    size = ITEM_SIZE[ref.dtype]
    nbytes = count * size
    view = _buffer.part(nbytes)
    source = ref.storage.source
    if source is None:
        raise Unreadable(f"{ref.storage.key}: its bytes are not in the checkpoint")
    got = source.read_into(ref.storage.offset + start * size, view)
    if got != nbytes:
        raise Unreadable(
            f"{source.name}: only {got} of {nbytes} bytes could be read; the file changed or is cut off"
        )
    if ref.swapped and size > 1:
        part = size // 2 if ref.dtype.startswith("complex") else size
        turned = torch.frombuffer(view, dtype=torch.uint8).view(-1, part).flip(1).contiguous().view(-1)
        return turned.view(torch_dtype(ref.dtype))
    return torch.frombuffer(view, dtype=torch_dtype(ref.dtype))


def row_loader(ref: TensorRef, rows: int) -> Callable[[int], torch.Tensor]:
    """`load` for many blocks of `rows` rows on this thread: all but the reading is done once."""
    import torch

    size, width = ITEM_SIZE[ref.dtype], ref.shape[1]
    nbytes = rows * width * size
    source, base = ref.storage.source, ref.storage.offset + ref.start * size

    def any_block(row: int) -> torch.Tensor:
        return load(ref, ref.start + row * width, rows * width).view(rows, width)

    if ref.swapped or source is None or nbytes > MOST_CHUNK:
        return any_block
    if isinstance(source, WindowSource) and base + ref.extent * size <= source.size:
        base, source = base + source.start, source.inner
    read, view = source.read_into, _buffer.part(nbytes)
    values = torch.frombuffer(view, dtype=torch_dtype(ref.dtype)).view(rows, width)

    def next_block(row: int) -> torch.Tensor:  # `load` says what is wrong with a short one
        return values if read(base + row * width * size, view) == nbytes else any_block(row)

    return next_block


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype values are viewed as."""
    import torch

    dtype: torch.dtype = getattr(torch, _VIEWED_AS.get(name, name))
    return dtype


def readable(name: str) -> bool:
    """False for types this version of torch does not know."""
    import torch

    return name in ITEM_SIZE and hasattr(torch, _VIEWED_AS.get(name, name))


def pieces(ref: TensorRef, begin: int = 0, end: int | None = None) -> Iterator[Piece]:
    """Every value once, in pieces of at most CHUNK bytes. `begin` and `end` cut a contiguous tensor."""
    size = ITEM_SIZE[ref.dtype]
    if ref.numel == 0:
        return
    if ref.contiguous:
        step = CHUNK // size
        stop = ref.numel if end is None else end
        for at in range(begin, stop, step):
            yield Piece(load(ref, ref.start + at, min(step, stop - at)), at, (1,))
        return
    if only_bytes(ref):
        extent = TensorRef(ref.storage, ref.dtype, (ref.extent,), (1,), ref.start, ref.swapped)
        yield from pieces(extent)
        return
    yield from _walk(ref, memory_order(ref), ref.start, 0, CHUNK // size)


def memory_order(ref: TensorRef) -> list[Axis]:
    """The dimensions sorted as they lie in the file; repeated ones (stride 0) are looked at once."""
    logical = row_major(ref.shape)
    axes = [
        Axis(size, stride, step)
        for size, stride, step in zip(ref.shape, ref.stride, logical, strict=True)
        if size > 1 and stride > 0
    ]
    return sorted(axes, key=lambda axis: -axis.stride)


def overlapping(axes: list[Axis]) -> bool:
    """Two indices that mean the same element."""
    reach = 1
    for axis in reversed(axes):
        if axis.stride < reach:
            return True
        reach += (axis.size - 1) * axis.stride
    return False


def only_bytes(ref: TensorRef) -> bool:
    """Far more elements than there are bytes for them (windows that overlap): each byte is looked at once."""
    axes = memory_order(ref)
    return overlapping(axes) and prod(axis.size for axis in axes) > 4 * ref.extent


def repeats(ref: TensorRef) -> int:
    """How often each element of the file occurs in the tensor (dimensions of stride 0)."""
    count = 1
    for size, stride in zip(ref.shape, ref.stride, strict=True):
        if stride == 0:
            count *= size
    return count


def _walk(ref: TensorRef, axes: list[Axis], start: int, base: int, room: int) -> Iterator[Piece]:
    """Split along the outermost dimension until a part fits into the buffer."""
    reach = 1 + sum((axis.size - 1) * axis.stride for axis in axes)
    if reach <= room:
        yield _strided(ref, axes, start, base, reach)
        return
    outer, inner = axes[0], axes[1:]
    inner_reach = 1 + sum((axis.size - 1) * axis.stride for axis in inner)
    together = max(1, (room - inner_reach) // outer.stride + 1) if inner_reach <= room else 1
    for at in range(0, outer.size, together):
        count = min(together, outer.size - at)
        offset, logical = start + at * outer.stride, base + at * outer.logical
        if count == 1:
            yield from _walk(ref, inner, offset, logical, room)
        else:
            part = [Axis(count, outer.stride, outer.logical), *inner]
            yield from _walk(ref, part, offset, logical, room)


def _strided(ref: TensorRef, axes: list[Axis], start: int, base: int, reach: int) -> Piece:
    flat = load(ref, start, reach)
    view = flat.as_strided([axis.size for axis in axes], [axis.stride for axis in axes])
    return Piece(view, base, tuple(axis.logical for axis in axes))


def whole(ref: TensorRef) -> torch.Tensor:
    """The tensor as it would be loaded, in a buffer of its own."""
    import torch

    single = tuple(1 if stride == 0 else size for size, stride in zip(ref.shape, ref.stride, strict=True))
    dense = replace(ref, shape=single)
    made = torch.empty(single, dtype=torch_dtype(ref.dtype))
    flat = made.view(-1)
    for piece in pieces(dense):
        shape = list(piece.values.shape)
        flat.as_strided(shape, list(piece.logical_strides), piece.base).copy_(piece.values)
    return made.expand(ref.shape)
