"""Tensors of a few numbers: read many of them with one system call, and without the cost of a torch call each."""

from __future__ import annotations

import math
from typing import Any

from stayfinite.readers.checkpoint.contents import TensorRef
from stayfinite.readers.checkpoint.source import ReadAhead, Source, WindowSource

_MOST_BYTES = 1024
_LETTER = {
    "float32": "f",
    "float64": "d",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
    "bool": "B",
}


def is_tiny(ref: TensorRef) -> bool:
    """Small enough, contiguous, and of a type that Python itself can read."""
    return (
        ref.numel * ref.item_size <= _MOST_BYTES
        and ref.dtype in _LETTER
        and not ref.swapped
        and ref.contiguous
    )


class TinyTensors:
    """Ranges of tiny tensors that lie near each other in a file."""

    def __init__(self) -> None:
        self._ahead: dict[int, ReadAhead] = {}

    def bounds(self, ref: TensorRef) -> tuple[float, float]:
        """The lowest and highest value; NaN twice where not all are finite, so that they are counted."""
        source, offset = _place(ref)
        ahead = self._ahead.get(id(source))
        if ahead is None:
            ahead = self._ahead[id(source)] = ReadAhead(source)
        data = ahead.read(offset + ref.start * ref.item_size, ref.numel * ref.item_size)
        view: Any = memoryview(data)
        values = view.cast(_LETTER[ref.dtype]).tolist()
        if not math.isfinite(sum(values)):
            return math.nan, math.nan
        return min(values), max(values)


def _place(ref: TensorRef) -> tuple[Source, int]:
    """The file behind a member of an archive, and where in it the storage starts."""
    source = ref.storage.source
    if isinstance(source, WindowSource):
        return source.inner, source.start + ref.storage.offset
    if source is None:
        raise ValueError("the bytes of the tensor are not there")
    return source, ref.storage.offset
