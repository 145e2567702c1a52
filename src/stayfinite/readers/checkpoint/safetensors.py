"""safetensors: eight bytes of length, a JSON header, and the tensors' bytes."""

from __future__ import annotations

import json
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import ITEM_SIZE, Contents, Storage, TensorRef, contiguous_ref
from stayfinite.readers.checkpoint.source import Source, Unreadable, read_bytes

NAME = "safetensors"
_MOST_HEADER = 100 << 20  # the format's own limit
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


_OTHER_DTYPES = ("F4", "F6_E2M3", "F6_E3M2")  # packed types, whose values are not looked at


def sniff(head: bytes, name: str) -> bool:
    """True where a JSON object follows a plausible length, or the name says so."""
    plausible = len(head) > 9 and int.from_bytes(head[:8], "little") <= _MOST_HEADER and head[8:9] == b"{"
    return plausible or name.endswith(".safetensors")


def read(source: Source) -> Contents:
    """One level of names to tensors, and the file's metadata."""
    if source.size < 8:
        raise Unreadable(f"{source.name}: {source.size} bytes are too few for a safetensors file")
    length = int.from_bytes(read_bytes(source, 0, 8), "little")
    if length > min(_MOST_HEADER, source.size - 8):
        raise Unreadable(
            f"{source.name}: its header should be {length} bytes long and the file has {source.size}; "
            "it is cut off or not a safetensors file"
        )
    problems: list[Problem] = []
    header = _parse(source, read_bytes(source, 8, length), problems)
    start, room = 8 + length, source.size - 8 - length
    tensors: dict[str, Any] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        ref, span = _tensor(source, start, room, name, entry)
        tensors[name] = ref
        spans.append((*span, name))
    problems += _layout_problems(source, spans, room)
    return Contents(NAME, tensors, problems)


def _parse(source: Source, text: bytes, problems: list[Problem]) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                message = f"the tensor {key!r} is listed twice"
                problems.append(Problem("duplicate", source.name, message, {"keys": [key]}))
            seen[key] = value
        return seen

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as trouble:
        raise Unreadable(
            f"{source.name}: its header is not valid JSON ({trouble}); the file is damaged"
        ) from trouble
    if not isinstance(header, dict):
        raise Unreadable(f"{source.name}: its header is not a table of tensors")
    return header


def _tensor(
    source: Source, start: int, room: int, name: str, entry: Any
) -> tuple[TensorRef, tuple[int, int]]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise Unreadable(f"{source.name}: the entry of tensor {name[:100]!r} is incomplete")
    shape, offsets = entry["shape"], entry["data_offsets"]
    numbers = [
        *(shape if isinstance(shape, list) else [None]),
        *(offsets if isinstance(offsets, list) else [None]),
    ]
    if (
        not all(isinstance(number, int) and number >= 0 for number in numbers)
        or len(offsets) != 2
        or len(shape) > 64
    ):
        raise Unreadable(
            f"{source.name}: shape or position of tensor {name[:100]!r} is not made of plain sizes"
        )
    begin, end = offsets
    dtype = _DTYPES.get(str(entry["dtype"]), str(entry["dtype"]))
    label = f"{source.name}#{name}"
    if str(entry["dtype"]) not in _DTYPES and str(entry["dtype"]) not in _OTHER_DTYPES:
        trouble = f"its type {str(entry['dtype'])[:20]!r} is none of the format's"
        return contiguous_ref(Storage(None, 0, 0, label, dtype, trouble), dtype, tuple(shape)), (begin, end)
    if begin > end or end > room:
        trouble = f"it should lie at bytes {begin} to {end} and the file holds {room}"
        return contiguous_ref(Storage(None, 0, 0, label, dtype, trouble), dtype, tuple(shape)), (0, 0)
    ref = contiguous_ref(Storage(source, start + begin, end - begin, label, dtype), dtype, tuple(shape))
    if dtype in ITEM_SIZE and ref.numel * ref.item_size != end - begin:
        trouble = f"its shape {tuple(shape)} needs {ref.numel * ref.item_size} bytes and it has {end - begin}"
        ref = contiguous_ref(Storage(None, 0, 0, label, dtype, trouble), dtype, tuple(shape))
    return ref, (begin, end)


def _layout_problems(source: Source, spans: list[tuple[int, int, str]], room: int) -> list[Problem]:
    """Tensors must follow each other without gaps or overlaps, to the end of the file."""
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at and end > begin:
            what = "overlaps the one before it" if begin < at else "leaves a gap before it"
            return [Problem("damaged", source.name, f"the tensor {name!r} {what}", {"tensor": name})]
        at = max(at, end)
    if at != room:
        message = (
            f"the tensors end at byte {at} of {room}: the file has been cut off or something was appended"
        )
        return [Problem("damaged", source.name, message, {"used": at, "present": room})]
    return []
