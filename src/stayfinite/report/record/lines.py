"""run.jsonl as batches of lines, while it is written and afterwards: rotated, truncated, removed, cut off."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

NAME = "run.jsonl"
_CHUNK = 1 << 20
_REMEMBERED = 256
_END = 1 << 16
_LONGEST = 1 << 25  # a line beyond this is no line of ours
_ROTATED = re.compile(re.escape(NAME) + r"\.(\d+)(\.gz)?")
_CONSTANTS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


@dataclass(slots=True)
class Batch:
    """Some lines in their order, and how many bytes and unreadable lines came with them."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    broken: int = 0
    nbytes: int = 0


class LineParser:
    """Bytes in any pieces, whole lines out; what is no JSON object is counted, not raised."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Batch:
        *whole, self._rest = (self._rest + data).split(b"\n") if data else (self._rest,)
        if self._skipping and whole:
            whole, self._skipping = whole[1:], False
        batch = parse(whole)
        if len(self._rest) > _LONGEST:
            self._rest, self._skipping = b"", True
            batch.broken += 1
        batch.nbytes = len(data)
        return batch

    def finish(self) -> Batch:
        """The end of the file: a last line without its newline counts if it is whole."""
        rest, self._rest = self._rest, b""
        return parse([rest])


def parse(raw: list[bytes]) -> Batch:
    """Many lines at once; one by one where that fails."""
    written = [line for line in raw if line]
    found = _load(b"[" + b",".join(written) + b"]")
    if found is None or len(found) != len(written):
        texts = [
            text for line in written if (text := line.decode("utf-8", "replace").strip().lstrip("\ufeff"))
        ]
        found = [item for text in texts for item in (_load(f"[{text}]") or [None])[:1]]
    lines = [item for item in found if isinstance(item, dict)]
    return Batch(lines, broken=len(found) - len(lines))


def _load(text: str | bytes) -> list[Any] | None:
    try:
        loaded: list[Any] = json.loads(text, parse_constant=_CONSTANTS.__getitem__)
    except (ValueError, RecursionError):
        return None
    return loaded


def record_files(run_dir: Path) -> list[Path]:
    """The files of a record, oldest first: run.jsonl.2.gz, run.jsonl.1, run.jsonl."""
    rotated = []
    for path in run_dir.glob(f"{NAME}.*"):
        match = _ROTATED.fullmatch(path.name)
        if match and path.is_file():
            rotated.append((int(match[1]), path))
    files = [path for _, path in sorted(rotated, reverse=True)]
    return [*files, run_dir / NAME] if (run_dir / NAME).is_file() else files


def read_batches(run_dir: Path) -> Iterator[Batch]:
    """Everything that is there now, in pieces of about a megabyte."""
    yield from _read_files(record_files(run_dir))


def read_rotated(run_dir: Path) -> Iterator[Batch]:
    """What was moved out of the way of run.jsonl before."""
    yield from _read_files([path for path in record_files(run_dir) if path.name != NAME])


def _read_files(paths: list[Path]) -> Iterator[Batch]:
    for path in paths:
        parser = LineParser()
        try:
            with _open(path) as file:
                while data := file.read(_CHUNK):
                    yield parser.feed(data)
        except (gzip.BadGzipFile, EOFError, zlib.error):  # a broken archive; what came before counts
            yield Batch(broken=1)
        yield parser.finish()


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


class Tail:
    """The new lines of a run.jsonl that may not exist yet, may be replaced by another, or may become shorter."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / NAME
        self._parser = LineParser()
        self._at = 0
        self._file_id: tuple[int, int] | None = None
        self._last = b""

    def read(self) -> Batch | None:
        """The next piece; None when there is nothing new for now."""
        try:
            if not self.path.is_file():  # not there (yet); or a pipe, which would keep us waiting
                return None
            with self.path.open("rb") as file:
                old = self._notice(file)
                file.seek(self._at)
                data = file.read(_CHUNK)
        except OSError:  # gone again, or not ours to read
            return None
        if not data and not old.lines and not old.broken:
            return None
        self._at += len(data)
        self._last = (self._last + data)[-_REMEMBERED:]
        new = self._parser.feed(data) if data else Batch()
        return Batch([*old.lines, *new.lines], old.broken + new.broken, old.nbytes + len(data))

    def _notice(self, file: IO[bytes]) -> Batch:
        """Another file, or one that no longer holds what was read last: begin at its beginning.

        Gives what the file before still held, at once: the new one may be empty for long, and be moved in its turn. The
        number of an inode alone does not tell: a file system gives it to the next file.
        """
        facts = os.fstat(file.fileno())
        identity = (facts.st_dev, facts.st_ino)
        file.seek(self._at - len(self._last))
        if identity != self._file_id or file.read(len(self._last)) != self._last:
            left = self._end_of_old() if identity != self._file_id else b""
            more, last = self._parser.feed(left), self._parser.finish()
            self._file_id, self._at, self._last, self._parser = identity, 0, b"", LineParser()
            return Batch([*more.lines, *last.lines], more.broken + last.broken, len(left))
        return Batch()

    def _end_of_old(self) -> bytes:
        """What was still written to the file that has moved, and to those that came and moved since we looked."""
        moved = [path for path in record_files(self.path.parent) if path.name != NAME]
        for number, path in enumerate(moved):
            try:
                with path.open("rb") as file:
                    facts = os.fstat(file.fileno())
                    if (facts.st_dev, facts.st_ino) != self._file_id:
                        continue
                    file.seek(self._at)
                    rest = file.read(_LONGEST)
                later = [_open(path) for path in moved[number + 1 :]]
                return b"\n".join([rest, *(_whole(file) for file in later)])
            except (OSError, EOFError, zlib.error):  # it moves again, or its archive is being written
                return b""
        return b""  # it was removed, not moved; or compressed


def _whole(file: IO[bytes]) -> bytes:
    with file:
        return file.read(_LONGEST)


def last_step_line(run_dir: Path) -> dict[str, Any]:
    """The newest step of a run, from the end of its file; empty where there is none."""
    try:
        with (run_dir / NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
            lines = parse(file.read(_END).split(b"\n")).lines
    except OSError:  # no record
        return {}
    return next((line for line in reversed(lines) if "event" not in line), {})


def record_time(run_dir: Path) -> float | None:
    """When the record was last written to."""
    try:
        return (run_dir / NAME).stat().st_mtime
    except OSError:  # no record
        return None
