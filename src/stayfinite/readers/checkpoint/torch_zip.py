"""torch.save since 1.6 (and TorchScript, Lightning .ckpt): a zip with data.pkl and one member per storage."""

from __future__ import annotations

from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import ITEM_SIZE, Contents, Storage
from stayfinite.readers.checkpoint.pickle_machine import PickleMachine
from stayfinite.readers.checkpoint.pickle_stream import PickleStream
from stayfinite.readers.checkpoint.rebuild import Rebuilder, accepted, misspelt, storage_identity
from stayfinite.readers.checkpoint.source import Source, Unreadable, read_bytes
from stayfinite.readers.checkpoint.torch_legacy import load_nested
from stayfinite.readers.checkpoint.zip_directory import ZipDirectory

NAME = "torch zip"
_MOST_BESIDE = 256 << 20


def sniff(head: bytes, name: str) -> bool:
    """True for any zip that is not by its name an array archive."""
    return head[:2] == b"PK" and not name.endswith(".npz")


def read(source: Source) -> Contents:
    """The tree inside, with tensors as references to the archive's members."""
    archive = ZipDirectory(source)
    pickles = [name for name in archive.members if name.endswith("/data.pkl") or name == "data.pkl"]
    if not pickles:
        raise Unreadable(
            f"{source.name}: this is a zip file, but there is no data.pkl in it: not a torch checkpoint"
        )
    main = min(pickles, key=len)
    prefix = main.removesuffix("data.pkl")
    order = archive.members.get(prefix + "byteorder")
    swapped = order is not None and order.size < 16 and _text(archive, order.name).strip() == "big"
    reader = _Reader(archive, prefix, swapped)
    root = reader.load(main, "data/")
    if prefix + "constants.pkl" in archive.members:  # TorchScript keeps frozen tensors apart
        root = {"": root, "constants": reader.load(prefix + "constants.pkl", "constants/")}
    problems = archive.problems + reader.problems + _damage(archive, prefix)
    return Contents(NAME, root, problems, {n: c for n, c in reader.globals.items() if not accepted(n)})


def _damage(archive: ZipDirectory, prefix: str) -> list[Problem]:
    """Members that belong to another folder, and small members beside the storages whose bytes were changed.

    The storages themselves are not checked: torch does not either, and it would halve the speed of the scan.
    """
    found: list[Problem] = []
    for name, member in archive.members.items():
        storage = name.startswith((prefix + "data/", prefix + "constants/"))
        if not name.startswith(prefix):
            found.append(
                Problem(
                    "damaged", archive.source.name, f"the member {name!r} is not in the folder {prefix!r}"
                )
            )
        elif not storage and member.size <= _MOST_BESIDE:
            wrong = archive.damage(name)
            if wrong is not None:
                found.append(Problem("damaged", archive.source.name, wrong, {"member": name}))
    return found[:20]


def _text(archive: ZipDirectory, name: str) -> str:
    member = archive.open(name)
    return read_bytes(member, 0, member.size).decode("ascii", "replace")


class _Reader:
    def __init__(self, archive: ZipDirectory, prefix: str, swapped: bool) -> None:
        self.archive = archive
        self.prefix = prefix
        self.swapped = swapped
        self.problems: list[Problem] = []
        self.globals: dict[str, int] = {}
        self._storages: dict[str, Storage] = {}
        self._machine: PickleMachine

    def load(self, member: str, folder: str) -> Any:
        meaning = Rebuilder(load_nested, self.swapped)
        machine = PickleMachine(
            PickleStream(self.archive.open(member)),
            persistent=lambda identity: self._storage(identity, folder),
            call=meaning.call,
            build=meaning.build,
        )
        self._machine = machine
        root = machine.load()
        lost = [
            *meaning.lost,
            *(f"it names {name!r}, which does not exist" for name in misspelt(machine.globals)),
        ]
        self.problems += [Problem("damaged", self.archive.source.name, text) for text in lost[:20]]
        for name, count in machine.globals.items():
            self.globals[name] = self.globals.get(name, 0) + count
        self.problems += machine.problems()
        return root

    def _storage(self, identity: Any, folder: str) -> Storage:
        kind, key, numel = storage_identity(identity, self.archive.source.name)
        member = f"{self.prefix}{folder}{key}"
        if member not in self._storages:
            self._storages[member] = self._find(member, kind, numel)
            if member in self.archive.members:
                self._machine.allow_tensor()
        return self._storages[member]

    def _find(self, member: str, dtype: str, numel: int) -> Storage:
        label = f"{self.archive.source.name}:{member}"
        if member not in self.archive.members:
            return Storage(None, 0, 0, label, dtype, f"the archive has no member {member!r}")
        try:
            source = self.archive.open(member)
        except Unreadable as trouble:
            return Storage(None, 0, 0, label, dtype, str(trouble))
        promised = numel * ITEM_SIZE.get(dtype, 1)
        if promised != source.size:
            self.problems.append(
                Problem(
                    "damaged",
                    self.archive.source.name,
                    f"the storage {member!r} should have {promised} bytes and has {source.size}",
                    {"member": member, "promised": promised, "found": source.size},
                )
            )
        return Storage(source, 0, source.size, label, dtype, archive=self.archive.extent)
