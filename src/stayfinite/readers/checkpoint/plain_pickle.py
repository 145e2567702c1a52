"""A plain pickle (.pkl) that holds tensors or arrays. It is read as data, like every other pickle here."""

from __future__ import annotations

from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import Contents
from stayfinite.readers.checkpoint.pickle_machine import PickleMachine
from stayfinite.readers.checkpoint.pickle_stream import PickleStream
from stayfinite.readers.checkpoint.rebuild import Rebuilder, accepted
from stayfinite.readers.checkpoint.source import Source, Unreadable
from stayfinite.readers.checkpoint.torch_legacy import load_nested

NAME = "pickle"
_TORCH_NAMES = (".pt", ".pth", ".th", ".ckpt")


def sniff(head: bytes, name: str) -> bool:
    """True for the start of a pickle of protocol 2 and later."""
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read(source: Source) -> Contents:
    """The tree inside."""

    def nowhere(identity: Any) -> Any:
        raise Unreadable(f"{source.name}: the pickle refers to data that is kept outside it")

    meaning = Rebuilder(load_nested)
    machine = PickleMachine(PickleStream(source), persistent=nowhere, call=meaning.call, build=meaning.build)
    root = machine.load()
    problems = machine.problems()
    left = source.size - machine.stream.tell()
    if left and source.name.endswith(_TORCH_NAMES):
        message = f"after a pickle of {source.size - left} bytes come {left} others: no torch file, or a damaged one"
        problems.append(Problem("damaged", source.name, message, {"left": left}))
    refused = {name: count for name, count in machine.globals.items() if not accepted(name)}
    return Contents(NAME, root, problems, refused)
