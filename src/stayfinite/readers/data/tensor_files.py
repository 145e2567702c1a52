"""pt, npy, npz, safetensors and pickles, by the checkpoint readers: nothing is executed, nothing loaded whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stayfinite.readers.checkpoint import Unreadable, files, read_file
from stayfinite.readers.checkpoint.contents import Composite, Opaque, TensorRef, row_major
from stayfinite.readers.checkpoint.pieces import readable, row_loader, whole
from stayfinite.readers.data.array import BLOCK, StoredArray, StoredData, UnreadableData

if TYPE_CHECKING:
    import torch

ENDINGS = (".pt", ".pth", ".npy", ".npz", ".safetensors", ".pkl", ".pickle", ".bin", ".ckpt")
_DEEPEST = 8
_MOST_ARRAYS = 100_000
_MOST_WHOLE = 512 << 20
_ID_NAMES = ("ids", "id", "names", "paths", "files", "filenames", "keys", "image_ids", "sample_ids", "texts")


def read(path: str) -> StoredData:
    """The arrays of a file, the names of its samples, and what is wrong with it."""
    try:
        contents = read_file(path)
    except Unreadable as trouble:
        raise UnreadableData(str(trouble)) from trouble
    data = StoredData(path, contents.format, files.size_of(path))
    data.problems = [
        (problem.file, problem.message) for problem in contents.problems if problem.what != "refused-global"
    ]
    found: dict[str, Any] = {}
    _walk(contents.root, "", found, data, 0)
    seen: set[Any] = set()
    for name, ref in found.items():
        if ref.identity in seen and ref.numel:
            continue
        seen.add(ref.identity)
        wrong = ref.trouble()
        if wrong is not None:
            data.problems.append((path, f"{name}: {wrong}"))
        elif readable(ref.dtype) and ref.numel:
            data.arrays.append(_array(name, ref))
    if not data.arrays and not data.problems:
        if any(readable(ref.dtype) for ref in found.values()):
            raise UnreadableData(f"{path}: its arrays hold no values: {_without_values(found)}")
        raise UnreadableData(f"{path}: there is no array of numbers in this file")
    return data


def _walk(node: Any, name: str, found: dict[str, Any], data: StoredData, depth: int) -> None:
    if isinstance(node, TensorRef):
        found[name or "data"] = node
    elif isinstance(node, Composite):
        for part, value in node.parts.items():
            _walk(value, f"{name}.{part}".lstrip("."), found, data, depth + 1)
    elif depth >= _DEEPEST or len(found) >= _MOST_ARRAYS:
        return
    elif isinstance(node, Mapping):
        for key, value in node.items():
            _walk(value, f"{name}.{key}".lstrip("."), found, data, depth + 1)
    elif isinstance(node, Opaque):
        if "array" in node.mapping:
            _walk(node.mapping["array"], name, found, data, depth + 1)
            return
        for inside in (node.state, node.mapping, [*node.args, *node.items]):
            if inside:
                _walk(inside, name, found, data, depth + 1)
    elif isinstance(node, (list, tuple)):
        if node and all(isinstance(item, str) for item in node[:100]):
            if name.rpartition(".")[2].lower() in _ID_NAMES:
                data.ids = [str(item) for item in node]
            return
        for index, value in enumerate(node):
            _walk(value, f"{name}.{index}".lstrip("."), found, data, depth + 1)


def _without_values(found: Mapping[str, TensorRef]) -> str:
    shapes = [f"{name} is {' x '.join(str(size) for size in ref.shape)}" for name, ref in found.items()]
    return ", ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _array(name: str, ref: TensorRef) -> StoredArray:
    rows = ref.shape[0] if ref.shape else 1
    width = max(1, ref.numel // max(rows, 1))
    if ref.contiguous:
        flat = replace(ref, shape=(rows, width), stride=(width, 1))
        return StoredArray(name, ref.dtype, ref.shape, lambda begin, end: _rows(flat, begin, end), rows)
    if ref.numel * ref.item_size <= _MOST_WHOLE:
        # Without a number of rows it is read by one thread, and as a whole.
        return StoredArray(name, ref.dtype, ref.shape, lambda begin, end: _copied(ref, begin, end), None)
    # A large array in another order (Fortran): its values are looked at in the order of the file, not by sample.
    flat = (
        replace(ref, shape=(ref.extent, 1), stride=(1, 1))
        if _dense(ref)
        else replace(ref, shape=(0, 1), stride=(1, 1))
    )
    note = "stored in another order than by sample, so single samples were not looked at"
    return StoredArray(
        name,
        ref.dtype,
        (flat.shape[0],),
        lambda begin, end: _rows(flat, begin, end),
        flat.shape[0],
        note=note,
    )


def _dense(ref: TensorRef) -> bool:
    return sorted(ref.stride) == sorted(row_major(tuple(sorted(ref.shape)))) or ref.extent == ref.numel


def _rows(ref: TensorRef, begin: int, end: int | None) -> Iterator[tuple[int, torch.Tensor]]:
    rows, width = ref.shape
    stop = rows if end is None else min(end, rows)
    step = max(1, BLOCK // max(1, width * ref.item_size))
    at = begin
    if begin + step <= stop:
        next_block = row_loader(ref, step)
        while at + step <= stop:
            yield at, next_block(at)
            at += step
    if at < stop:
        yield at, row_loader(ref, stop - at)(at)


def _copied(ref: TensorRef, begin: int, end: int | None) -> Iterator[tuple[int, torch.Tensor]]:
    made = whole(ref)
    yield begin, made.reshape(made.shape[0], -1)[begin:end]
