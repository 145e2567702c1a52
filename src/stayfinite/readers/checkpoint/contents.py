"""What a reader hands over: a tree of plain Python data whose leaves may be tensors still on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.source import Source

# Bytes per element. A dtype that is not here is carried along by name, and its values are not looked at.
ITEM_SIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
}


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes in a source. `key` tells storages apart, so that tied tensors are seen as one."""

    source: Source | None
    offset: int
    nbytes: int
    key: str
    dtype: str = "uint8"
    trouble: str = ""
    """Why the bytes cannot be read, where `source` is None."""
    archive: tuple[int, int] | None = None
    """Start and size of the zip archive it is stored in, where there is one."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor on disk: a strided view of a storage. `start` and `stride` count elements."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int = 0
    swapped: bool = False
    """The bytes are in the other byte order."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def item_size(self) -> int:
        return ITEM_SIZE.get(self.dtype, 1)

    @property
    def extent(self) -> int:
        """How many elements of the storage, from `start`, the tensor reaches over."""
        if 0 in self.shape:
            return 0
        if len(self.shape) == 1:
            return 1 + (self.shape[0] - 1) * self.stride[0]
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def contiguous(self) -> bool:
        if len(self.shape) == 1 and self.stride == (1,):  # the ordinary case of the smallest tensors
            return True
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected and 0 not in self.shape:
                return False
            expected *= size
        return True

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.storage.key, self.start, self.shape, self.stride, self.dtype)

    def trouble(self) -> str | None:
        """Why the values cannot be read, or None."""
        if self.storage.source is None:
            return self.storage.trouble or "its bytes are not in the checkpoint"
        if self.dtype not in ITEM_SIZE:
            return None
        if len(self.shape) != len(self.stride) or self.start < 0:
            return f"its shape {self.shape} and strides {self.stride} do not belong together"
        if min(self.shape, default=0) < 0 or min(self.stride, default=0) < 0:
            return f"its shape {self.shape} or strides {self.stride} are negative"
        extent = self.extent
        needed = (self.start + extent) * self.item_size if extent else 0
        if needed > self.storage.nbytes:
            return f"its shape {self.shape} needs {needed} bytes and the file holds {self.storage.nbytes}"
        return None


@dataclass(frozen=True, slots=True)
class Composite:
    """A tensor made of tensors: sparse (indices, values) or quantised (integers, scale)."""

    layout: str
    shape: tuple[int, ...]
    parts: dict[str, Any]


@dataclass(slots=True, eq=False)
class Opaque:
    """An object whose class was not imported and not called: its name and the plain data inside."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    mapping: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Contents:
    """One file, read but for the values of its tensors."""

    format: str
    root: Any
    problems: list[Problem] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    """Globals that `torch.load(weights_only=True)` would refuse, and how often each is named."""


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous_ref(storage: Storage, dtype: str, shape: tuple[int, ...], **more: Any) -> TensorRef:
    """A tensor that fills its storage in row-major order."""
    return TensorRef(storage, dtype, shape, row_major(shape), **more)
