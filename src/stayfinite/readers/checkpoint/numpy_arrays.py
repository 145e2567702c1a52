"""npy and npz: numpy arrays, read from their headers; object arrays are pickles and are not unpacked."""

from __future__ import annotations

import ast
import re
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import Contents, Storage, TensorRef
from stayfinite.readers.checkpoint.rebuild import array_dtype, array_ref
from stayfinite.readers.checkpoint.source import Source, Unreadable, read_bytes
from stayfinite.readers.checkpoint.zip_directory import ZipDirectory

NAME = "numpy"
_MAGIC = b"\x93NUMPY"
_VERSIONS = ((1, 0), (2, 0), (3, 0))
# Texts, bytes, dates, long doubles, raw bytes and objects: types of numpy whose values are not looked at.
_OTHER_TYPES = re.compile(r"[<>|=]?(O8?|[SUVa]\d+|[Mm]8(\[\w+\])?|f16|c32|f12|c24)")
_KEYS = {"descr", "fortran_order", "shape"}


def sniff(head: bytes, name: str) -> bool:
    """True for an npy file by its magic, an npz by its name."""
    return head[:6] == _MAGIC or (head[:2] == b"PK" and name.endswith(".npz"))


def read(source: Source) -> Contents:
    """The array, or a table of names to arrays."""
    if read_bytes(source, 0, min(6, source.size)) == _MAGIC:
        array = _array(source, source.name)
        if array.dtype.lstrip("<>|=").startswith("O"):
            raise Unreadable(
                f"{source.name}: an array of Python objects, which is a pickle: numpy refuses it unless told to "
                "execute it, and nothing in it was looked at; save numbers"
            )
        return Contents("npy", {"array": array})
    archive = ZipDirectory(source)
    arrays: dict[str, Any] = {}
    for name in archive.members:
        if name.endswith(".npy"):
            arrays[name.removesuffix(".npy")] = _member(archive, name)
            continue
        # numpy hands out such members too, and refuses them when they are damaged
        wrong = archive.damage(name)
        if wrong is not None:
            archive.problems.append(Problem("damaged", source.name, wrong, {"member": name}))
    if not arrays:
        raise Unreadable(f"{source.name}: there is no array in this archive")
    return Contents("npz", arrays, archive.problems)


def _member(archive: ZipDirectory, name: str) -> Any:
    label = f"{archive.source.name}:{name}"
    packed = archive.members[name].method != 0  # then its checksum is looked at while it is unpacked
    try:
        wrong = None if packed else archive.damage(name)
        if wrong is None:
            return _array(archive.open(name), label, archive.extent)
    except Unreadable as trouble:
        wrong = str(trouble)
    return TensorRef(Storage(None, 0, 0, label, trouble=wrong), "uint8", (0,), (1,))


def _array(source: Source, label: str, archive: tuple[int, int] | None = None) -> Any:
    start = read_bytes(source, 0, 12)
    if start[:6] != _MAGIC:
        raise Unreadable(f"{label}: this member is not a numpy array")
    if (start[6], start[7]) not in _VERSIONS:
        raise Unreadable(f"{label}: version {start[6]}.{start[7]} of the array format does not exist")
    wide = start[6] >= 2
    length = int.from_bytes(start[8 : 12 if wide else 10], "little")
    offset = 12 if wide else 10
    try:
        header = ast.literal_eval(
            read_bytes(source, offset, length, most=1 << 20).decode("latin-1").strip(" \n")
        )
        kind, fortran, shape = header["descr"], header["fortran_order"], tuple(header["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as trouble:
        raise Unreadable(
            f"{label}: the header of the array is damaged ({type(trouble).__name__})"
        ) from trouble
    if not all(isinstance(size, int) and 0 <= size < 1 << 62 for size in shape) or len(shape) > 64:
        raise Unreadable(f"{label}: the shape of the array is not made of plain sizes")
    if set(header) != _KEYS or not isinstance(fortran, bool):
        raise Unreadable(f"{label}: the header of the array is damaged ({sorted(header)})")
    dtype, swapped = array_dtype(kind)
    if dtype is None:
        if isinstance(kind, str) and not _OTHER_TYPES.fullmatch(kind):
            raise Unreadable(f"{label}: the array is of a type {kind[:40]!r} that does not exist")
        dtype = str(kind)[:60]
    begin = offset + length
    storage = Storage(source, begin, source.size - begin, label, dtype, archive=archive)
    return array_ref(storage, dtype, shape, fortran, swapped)
