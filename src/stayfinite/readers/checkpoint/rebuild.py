"""What the names inside a pickle mean: which calls make a tensor, and where its bytes are.

Nothing is called. A name that is not known here gives an `Opaque`, and is listed as refused unless
`torch.load(weights_only=True)` accepts it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from stayfinite.readers.checkpoint.contents import Composite, Opaque, Storage, TensorRef, contiguous_ref
from stayfinite.readers.checkpoint.pickle_machine import GlobalName
from stayfinite.readers.checkpoint.pickle_stream import Span
from stayfinite.readers.checkpoint.source import Unreadable

STORAGE_DTYPE = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "UntypedStorage": "uint8",
}

_NUMPY_DTYPE = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "b1": "bool",
}

_LARGEST = 1 << 62
_OWN = ("torch.", "torch._", "numpy.")
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.dict")

# Accepted by torch.load(weights_only=True); all others are named to the user.
_ACCEPTED = re.compile(
    r"collections\.(OrderedDict|Counter)|(builtins|__builtin__)\.(set|complex|bytearray)|_codecs\.encode"
    r"|torch\.(Size|device|nn\.parameter\.Parameter|serialization\._get_layout|_tensor\._rebuild_from_type_v2)"
    r"|torch\.storage\.(Untyped|Typed)Storage|torch(\.cuda)?\.\w*Storage|torch(\.cuda)?(\.sparse)?\.\w*Tensor"
    r"|torch\.(b?float|complex|q?u?int|bits|bool|per_tensor|per_channel)\w*"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state|sparse_tensor|qtensor"
    r"|meta_tensor_no_storage|nested_tensor|wrapper_subclass|device_tensor_from_numpy|device_tensor_from_cpu_tensor)"
)


_USUAL = (
    "collections.OrderedDict",
    "collections.defaultdict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_sparse_tensor",
    "torch.serialization._get_layout",
    *(f"torch.{name}" for name in STORAGE_DTYPE),
)


def misspelt(names: Iterable[str]) -> list[str]:
    """Names that nothing has, but that almost are ones every torch file uses: bytes of the pickle were changed."""
    return [
        name
        for name in names
        if not accepted(name) and difflib.get_close_matches(name, _USUAL, 1, cutoff=0.9)
    ]


def accepted(name: str) -> bool:
    """True for what a weights-only load takes: tensors, their types, and plain containers."""
    return _ACCEPTED.fullmatch(name) is not None


class Rebuilder:
    """Gives a `PickleMachine` its meaning. `load_bytes` reads a torch file kept inside a pickle."""

    def __init__(
        self, load_bytes: Callable[[Span | bytes], Any] | None = None, swapped: bool = False
    ) -> None:
        self._load_bytes = load_bytes
        self._swapped = swapped
        self.lost: list[str] = []
        """Tensors that the file names and that nobody can make out of what it says."""

    def call(self, function: Any, args: tuple[Any, ...]) -> Any:
        """What a call in the pickle stands for."""
        if not isinstance(function, GlobalName):
            return Opaque("a computed value", args)
        name = str(function)
        last = name.rpartition(".")[2]
        if name in _DICTS and not (args and isinstance(args[0], (list, tuple, dict))):
            return {}
        if name in ("torch.Size", "builtins.set", "__builtin__.set", "builtins.frozenset") and len(args) == 1:
            return args[0]
        if name == "_codecs.encode" and args and isinstance(args[0], str):
            return args[0].encode("latin-1", "replace")
        if last in _TENSOR_CALLS and name.startswith(("torch.", "numpy.")):
            made = _TENSOR_CALLS[last](self, args)
            if made is not None:
                return made
        if name in ("copyreg._reconstructor", "copy_reg._reconstructor") and args:
            return Opaque(str(args[0]))
        if args and isinstance(args[0], Storage) and name.startswith(_OWN):
            self.lost.append(
                f"a tensor is to be made by {name!r} of {_shown(args[1:])}, which is not possible"
            )
        return Opaque(name, args)

    def build(self, target: Any, state: Any) -> Any:
        """What `target.__setstate__(state)` stands for."""
        if isinstance(target, Opaque):
            if target.name == "numpy.dtype" and isinstance(state, tuple) and len(state) > 1:
                target.state = state[1]
                return target
            if target.name == "numpy.ndarray" and isinstance(state, tuple) and len(state) == 5:
                target.mapping["array"] = self._array(state[1], state[2], state[4], fortran=bool(state[3]))
                return target
            target.state = state if target.state is None else (target.state, state)
        elif isinstance(target, TensorRef) and isinstance(state, dict):
            return Opaque("torch.Tensor", (target,), state)
        return target

    # Tensors

    def _strided(self, args: tuple[Any, ...], dtype: str | None = None) -> TensorRef | None:
        if len(args) < 4:
            return None
        storage, start, shape, stride = args[:4]
        if not isinstance(storage, Storage):
            return None
        if not _sizes(shape) or not _sizes(stride) or not _size(start) or len(shape) != len(stride):
            # A tensor that no reader can make must not vanish: it is damage.
            trouble = (
                f"shape {_shown(shape)}, strides {_shown(stride)} and offset {_shown(start)} make no tensor"
            )
            gone = replace(storage, source=None, offset=0, nbytes=0, trouble=trouble)
            return TensorRef(gone, dtype or storage.dtype, (0,), (1,), 0, self._swapped)
        return TensorRef(storage, dtype or storage.dtype, tuple(shape), tuple(stride), start, self._swapped)

    def _v1(self, args: tuple[Any, ...]) -> Any:
        return self._strided(args)

    def _v2(self, args: tuple[Any, ...]) -> Any:
        return self._strided(args) if len(args) >= 6 else None

    def _v3(self, args: tuple[Any, ...]) -> Any:
        dtype = dtype_name(args[6]) if len(args) > 6 else None
        return self._strided(args, dtype)

    def _parameter(self, args: tuple[Any, ...]) -> Any:
        return args[0] if args and isinstance(args[0], (TensorRef, Composite)) else None

    def _subclass(self, args: tuple[Any, ...]) -> Any:
        """`_rebuild_from_type_v2(function, type, args, state)`: the tensor, with what it carries."""
        if len(args) != 4 or not isinstance(args[2], tuple):
            return None
        inner = self.call(args[0], args[2])
        if isinstance(inner, TensorRef) and not args[3]:
            return inner
        return Opaque(str(args[1]), (inner,), args[3])

    def _sparse(self, args: tuple[Any, ...]) -> Any:
        data = args[1] if len(args) > 1 and isinstance(args[1], tuple) else ()
        names: tuple[str, ...] = ("indices", "values") if len(data) in (3, 4) and _sizes(data[2]) else ()
        if not names:
            names = (
                ("crow_indices", "col_indices", "values") if len(data) in (4, 5) and _sizes(data[3]) else ()
            )
        if not names:
            return None
        return Composite("sparse", tuple(data[len(names)]), dict(zip(names, data, strict=False)))

    def _quantised(self, args: tuple[Any, ...]) -> Any:
        integers = self._strided(args)
        if integers is None or len(args) < 5 or not isinstance(args[4], tuple):
            return None
        plain = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
        integers = replace(integers, dtype=plain.get(integers.dtype, integers.dtype))
        parts = {"integers": integers, "scale": args[4][1] if len(args[4]) > 1 else None}
        return Composite("quantised", integers.shape, parts)

    def _meta(self, args: tuple[Any, ...]) -> Any:
        if len(args) < 2 or not _sizes(args[1]):
            return None
        nowhere = Storage(None, 0, 0, "meta", trouble="it was saved from the meta device, without values")
        return contiguous_ref(nowhere, dtype_name(args[0]) or "uint8", tuple(args[1]))

    def _nested_file(self, args: tuple[Any, ...]) -> Any:
        if self._load_bytes is None or not args or not isinstance(args[0], (bytes, Span)):
            return None
        return self._load_bytes(args[0])

    # Arrays

    def _empty_array(self, args: tuple[Any, ...]) -> Any:
        return Opaque("numpy.ndarray")

    def _array_from_buffer(self, args: tuple[Any, ...]) -> Any:
        if len(args) < 3:
            return None
        order = args[3] if len(args) > 3 else "C"
        array = self._array(args[2], args[1], args[0], fortran=order == "F")
        return Opaque("numpy.ndarray", mapping={"array": array})

    def _scalar(self, args: tuple[Any, ...]) -> Any:
        if len(args) != 2:
            return None
        array = self._array((), args[0], args[1], fortran=False)
        return Opaque("numpy.ndarray", mapping={"array": array})

    def _array(self, shape: Any, kind: Any, data: Any, *, fortran: bool) -> Any:
        if isinstance(data, list):
            return data
        dtype, swapped = array_dtype(kind)
        if dtype is None or not _sizes(shape) or not isinstance(data, (bytes, Span)):
            return None
        if isinstance(data, bytes):
            storage = Storage(_Held(data), 0, len(data), f"held:{id(data)}")
        else:
            storage = Storage(data.source, data.offset, data.nbytes, f"{data.source.name}@{data.offset}")
        return array_ref(storage, dtype, tuple(shape), fortran, swapped)


class _Held:
    """A few bytes that were inside the pickle itself."""

    def __init__(self, data: bytes) -> None:
        self.name = "a value inside the pickle"
        self.size = len(data)
        self._data = data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        piece = self._data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)


def storage_identity(identity: Any, name: str) -> tuple[str, str, int]:
    """The dtype, key and length of ("storage", type, key, location, numel)."""
    if (
        not isinstance(identity, tuple)
        or len(identity) < 5
        or identity[0] != "storage"
        or not isinstance(identity[1], GlobalName)
        or not isinstance(identity[2], str)
        or not isinstance(identity[4], int)
    ):
        raise Unreadable(f"{name}: the pickle refers to something that is not a tensor's storage")
    dtype = STORAGE_DTYPE.get(identity[1].rpartition(".")[2], str(identity[1]))
    return dtype, identity[2], identity[4]


def array_ref(
    storage: Storage, dtype: str, shape: tuple[int, ...], fortran: bool, swapped: bool
) -> TensorRef:
    """A numpy array as a tensor, in either memory order."""
    if not fortran:
        return contiguous_ref(storage, dtype, shape, swapped=swapped)
    turned = contiguous_ref(storage, dtype, shape[::-1])
    return replace(turned, shape=shape, stride=turned.stride[::-1], swapped=swapped)


def array_dtype(kind: Any) -> tuple[str | None, bool]:
    """A numpy dtype ("<f4" or its pickled form) as a name, and whether its bytes are swapped."""
    order = ""
    if isinstance(kind, Opaque):
        order = kind.state if isinstance(kind.state, str) else ""
        kind = kind.args[0] if kind.args else ""
    if not isinstance(kind, str):
        return None, False
    if kind[:1] in "<>|=":
        order, kind = kind[:1], kind[1:]
    dtype = _NUMPY_DTYPE.get("b1" if kind in ("?", "b1") else kind)
    return dtype, order == ">"


def dtype_name(value: Any) -> str | None:
    """ "float8_e4m3fn" from the name torch.float8_e4m3fn."""
    return str(value).removeprefix("torch.") if isinstance(value, GlobalName) else None


def _size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _sizes(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) > 64:
        return False
    for item in value:  # noqa: SIM110 - this is called for every tensor, and a generator costs three times as much
        if type(item) is not int or not 0 <= item < _LARGEST:
            return False
    return True


def _shown(value: Any) -> str:
    """Something out of a file, short and printable."""
    return repr(value)[:60]


_TENSOR_CALLS: dict[str, Callable[[Rebuilder, tuple[Any, ...]], Any]] = {
    "_rebuild_tensor": Rebuilder._v1,
    "_rebuild_tensor_v2": Rebuilder._v2,
    "_rebuild_tensor_v3": Rebuilder._v3,
    "_rebuild_parameter": Rebuilder._parameter,
    "_rebuild_parameter_with_state": Rebuilder._parameter,
    "_rebuild_from_type_v2": Rebuilder._subclass,
    "_rebuild_sparse_tensor": Rebuilder._sparse,
    "_rebuild_qtensor": Rebuilder._quantised,
    "_rebuild_meta_tensor_no_storage": Rebuilder._meta,
    "_load_from_bytes": Rebuilder._nested_file,
    "_reconstruct": Rebuilder._empty_array,
    "_frombuffer": Rebuilder._array_from_buffer,
    "scalar": Rebuilder._scalar,
}
