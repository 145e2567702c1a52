"""Training logs of every common format, read as a stream of blocks: numbers with names, steps and lines.

Each format is a file with `NAME`, `sniff(head, name)` and a reader that takes bytes as they come, so the same code
reads a finished log and one that is still being written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Protocol

from stayfinite.readers.log import (
    json_lines,
    plain_text,
    run_record,
    table,
    tensorboard,
    trainer_state,
    wandb_history,
)
from stayfinite.readers.log.block import Block, Column, Wanted
from stayfinite.readers.log.names import core, ignored, role_of
from stayfinite.readers.log.source import PIECE, UnreadableLog, chunks, open_log

__all__ = [
    "PIECE",
    "Block",
    "Column",
    "Reader",
    "UnreadableLog",
    "chunks",
    "core",
    "ignored",
    "make_reader",
    "open_log",
    "role_of",
]


class Reader(Protocol):
    """Takes the bytes of a log in order."""

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        """The records that are complete; `last` says that no more bytes follow."""
        ...


_Sniff = Callable[[bytes, str], bool]
_Make = Callable[[Wanted], Reader]
# The first that recognises the file reads it; plain text accepts most and comes last.
_FORMATS: tuple[tuple[str, _Sniff, _Make], ...] = (
    (wandb_history.NAME, wandb_history.sniff, wandb_history.HistoryReader),
    (tensorboard.NAME, tensorboard.sniff, tensorboard.EventsReader),
    (run_record.NAME, run_record.sniff, run_record.make_reader),
    (trainer_state.NAME, trainer_state.sniff, trainer_state.TrainerStateReader),
    (json_lines.NAME, json_lines.sniff, json_lines.JsonLinesReader),
    (table.NAME, table.sniff, table.TableReader),
    (plain_text.NAME, plain_text.sniff, plain_text.TextReader),
)


def make_reader(head: bytes, path: str, wanted: Wanted = core) -> tuple[str, Reader]:
    """The name of the format, and a reader for it. `head` is the first piece of the file."""
    if not head:
        raise UnreadableLog(f"{path}: the file is empty; nothing was logged")
    name = PurePath(path).name.removesuffix(".gz")
    for form, sniff, make in _FORMATS:
        if sniff(head, name):
            return form, make(wanted)
    raise UnreadableLog(f"{path}: not a log known here; it starts with {head[:8]!r}, which is no text")
