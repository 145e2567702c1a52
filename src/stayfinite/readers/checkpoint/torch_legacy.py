"""torch.save before 1.6 (and tensors inside plain pickles): pickles in a row, then the storages' bytes."""

from __future__ import annotations

import io
import re
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import ITEM_SIZE, Contents, Storage
from stayfinite.readers.checkpoint.pickle_machine import PickleMachine
from stayfinite.readers.checkpoint.pickle_stream import PickleStream, Span
from stayfinite.readers.checkpoint.rebuild import Rebuilder, accepted, misspelt, storage_identity
from stayfinite.readers.checkpoint.source import HandleSource, Source, Unreadable, WindowSource, read_bytes

NAME = "torch legacy pickle"
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MOST_STORAGES = 1_000_000
_LOCATION = re.compile(r"[a-z]+(:\d+)?")


def sniff(head: bytes, name: str) -> bool:
    """True where the file starts with torch's magic number as a pickle."""
    return head[:1] == b"\x80" and _MAGIC.to_bytes(10, "little") in head[:32]


def read(source: Source) -> Contents:
    """The tree inside, with tensors as references to the bytes after the pickles."""
    reader = _Reader(source)
    root = reader.load()
    refused = {name: count for name, count in reader.globals.items() if not accepted(name)}
    return Contents(NAME, root, reader.problems, refused)


def load_nested(data: Span | bytes) -> Any:
    """A torch file kept as bytes inside another pickle, as `pickle.dump(tensor)` writes it."""
    source: Source
    if isinstance(data, bytes):
        source = HandleSource(io.BytesIO(data), "a tensor inside the pickle")
    else:
        source = WindowSource(data.source, data.offset, data.nbytes)
    if not sniff(read_bytes(source, 0, min(64, source.size)), ""):
        raise Unreadable(f"{source.name}: the bytes of a tensor inside the pickle are not a torch file")
    return _Reader(source, nested=True).load()


class _Reader:
    def __init__(self, source: Source, nested: bool = False) -> None:
        self.source = source
        self.stream = PickleStream(source)
        self.problems: list[Problem] = []
        self.globals: dict[str, int] = {}
        self._nested = nested
        self._dtypes: dict[str, str] = {}
        self._found: dict[str, Storage] = {}
        self._sizes: dict[str, int] = {}
        self._machine: PickleMachine
        self._named: set[str] = set()

    def load(self) -> Any:
        if self._pickle() != _MAGIC:
            raise Unreadable(f"{self.source.name}: not a torch file (the magic number is missing)")
        version = self._pickle()
        if version != _PROTOCOL:
            raise Unreadable(
                f"{self.source.name}: protocol {str(version)[:20]} of the legacy format, and only {_PROTOCOL} exists"
            )
        info = self._pickle()
        swapped = isinstance(info, dict) and info.get("little_endian") is False
        # The storages lie behind the pickle that names them: read it once to learn which there are, find
        # their places, and read it again with the places known.
        start = self.stream.tell()
        self._pickle(swapped)
        self._place_storages(self._pickle())
        self.stream.seek(start)
        return self._pickle(swapped, report=True)

    def _pickle(self, swapped: bool = False, report: bool = False) -> Any:
        meaning = Rebuilder(None if self._nested else load_nested, swapped)
        machine = PickleMachine(self.stream, persistent=self._storage, call=meaning.call, build=meaning.build)
        self._machine = machine
        self._named = set()
        value = machine.load()
        if report:
            self.globals = machine.globals
            self.problems += machine.problems()
            lost = [
                *meaning.lost,
                *(f"it names {name!r}, which does not exist" for name in misspelt(machine.globals)),
            ]
            self.problems += [Problem("damaged", self.source.name, text) for text in lost[:20]]
        return value

    def _place_storages(self, keys: Any) -> None:
        """After the pickles: for each key its length (8 bytes) and its bytes."""
        if not isinstance(keys, list) or len(keys) > _MOST_STORAGES:
            raise Unreadable(f"{self.source.name}: the list of storages is damaged")
        at = self.stream.tell()
        for key in keys:
            dtype = self._dtypes.get(str(key))
            if dtype is None:
                raise Unreadable(
                    f"{self.source.name}: a storage {str(key)[:40]!r} is listed that no tensor uses"
                )
            numel = int.from_bytes(read_bytes(self.source, at, 8), "little", signed=True)
            size = numel * ITEM_SIZE.get(dtype, 1)
            label = self._label(str(key))
            if numel < 0 or at + 8 + size > self.source.size:
                trouble = f"the file ends inside it: {size} bytes are promised at byte {at + 8}"
                self._found[str(key)] = Storage(None, 0, 0, label, dtype, trouble)
                message = (
                    f"the file ends at byte {self.source.size}, inside the storage {key!r}: it was cut off"
                )
                self.problems.append(
                    Problem("damaged", self.source.name, message, {"size": self.source.size})
                )
                return
            self._found[str(key)] = Storage(self.source, at + 8, size, label, dtype)
            promised = self._sizes.get(str(key), numel)
            if promised != numel:
                message = f"the storage {str(key)[:40]!r} should have {promised} elements and has {numel}"
                self.problems.append(
                    Problem("damaged", self.source.name, message, {"promised": promised, "found": numel})
                )
            at += 8 + size

    def _storage(self, identity: Any) -> Any:
        dtype, key, numel = storage_identity(identity, self.source.name)
        if key not in self._named:
            self._named.add(key)
            self._machine.allow_tensor()
        self._dtypes[key], self._sizes[key] = dtype, numel
        if not isinstance(identity[3], str) or not _LOCATION.fullmatch(identity[3]):
            raise Unreadable(
                f"{self.source.name}: a tensor should go to the device {str(identity[3])[:40]!r}, which is none"
            )
        missing = Storage(None, 0, 0, self._label(key), dtype, "the file ends before its bytes")
        whole = self._found.get(key, missing)
        view = identity[5] if len(identity) > 5 else None
        if (
            isinstance(view, tuple)
            and len(view) == 3
            and isinstance(view[1], int)
            and isinstance(view[2], int)
        ):
            return self._part(whole, view[1], view[2])
        return whole

    def _label(self, key: str) -> str:
        # Keys are numbers that may repeat among several torch files inside one pickle.
        return f"{self.source.name}@{id(self.source)}#{key}"

    def _part(self, whole: Storage, offset: int, numel: int) -> Storage:
        """A storage that is a view of another one."""
        size = ITEM_SIZE.get(whole.dtype, 1)
        if whole.source is None:
            return whole
        if offset < 0 or numel < 0 or (offset + numel) * size > whole.nbytes:
            trouble = f"it is a view of elements {offset} to {offset + numel} of a storage of {whole.nbytes // size}"
            return Storage(None, 0, 0, whole.key, whole.dtype, trouble)
        return Storage(
            whole.source, whole.offset + offset * size, numel * size, f"{whole.key}+{offset}", whole.dtype
        )
