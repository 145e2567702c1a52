"""Files that no reader should trust: made by hand, each named for what is wrong with it."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

LONG_LINE = b"loss " + b"9" * (5 << 20)


def _npz() -> bytes:
    memory = io.BytesIO()
    np.savez(memory, embeddings=np.random.default_rng(0).normal(size=(40, 8)))
    return memory.getvalue()


def _torch(value: object, *, legacy: bool = False) -> bytes:
    memory = io.BytesIO()
    torch.save(value, memory, _use_new_zipfile_serialization=not legacy)
    return memory.getvalue()


def _wrong_sum() -> bytes:
    data = bytearray(_npz())
    data[400] ^= 1  # inside the values, which are stored as they are
    return bytes(data)


def _impossible_offsets() -> bytes:
    data = save({"embeddings": torch.randn(4, 8)})
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header["embeddings"]["data_offsets"] = [64, 1 << 40]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def _impossible_strides() -> bytes:
    """A torch file whose only tensor claims strides that reach far behind its storage."""
    with zipfile.ZipFile(io.BytesIO(_torch({"embeddings": torch.randn(3, 7)}))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in parts if name.endswith("data.pkl"))
    strides = b"K\x07K\x01\x86"  # (7, 1)
    assert strides in parts[name]
    parts[name] = parts[name].replace(strides, b"M\xff\xffM\xff\xff\x86")
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for member, data in parts.items():
            archive.writestr(member, data)
    return memory.getvalue()


CONTENTS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "garbage": lambda: bytes(range(256)) * 40,
    "not UTF-8": lambda: b"\xff\xfe\xe9 \xc3\x28\n" * 50,
    "long line": lambda: LONG_LINE,
    "cut zip": lambda: _npz()[:-60],
    "cut torch file": lambda: _torch({"w": torch.randn(50, 50)})[:-3000],
    "cut legacy file": lambda: _torch({"w": torch.randn(50, 50)}, legacy=True)[:-3000],
    "pickle that raises": lambda: pickle.dumps({"w": 1}, 2)[:-4] + b"R\x93\x81.",
}
DAMAGED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "npz with a wrong sum": ("x.npz", _wrong_sum),
    "offsets behind the end": ("x.safetensors", _impossible_offsets),
    "strides behind the end": ("x.pt", _impossible_strides),
}
PLACES: dict[str, Callable[[Path], None]] = {
    "link to itself": lambda path: path.symlink_to(path),
    "dead link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
}
