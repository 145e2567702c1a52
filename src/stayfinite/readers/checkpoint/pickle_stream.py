"""A buffered cursor over a source, for reading pickle opcodes without holding the whole file."""

from __future__ import annotations

from dataclasses import dataclass

from stayfinite.readers.checkpoint.source import Source, Unreadable, read_bytes

_BLOCK = 1 << 18
_LONGEST_TEXT = 64 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that were left where they are: an array inside a pickle can be gigabytes long."""

    source: Source
    offset: int
    nbytes: int


class PickleStream:
    """Reads forward; knows its position, so that long bytes can be skipped and found again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.block = b""
        """What has been read ahead, and how far into it the cursor is; the machine looks into it directly."""
        self.at = 0
        self._block_start = 0

    def tell(self) -> int:
        return self._block_start + self.at

    def seek(self, position: int) -> None:
        self.block, self._block_start, self.at = b"", position, 0

    def read(self, count: int) -> bytes:
        if self.at + count <= len(self.block):
            piece = self.block[self.at : self.at + count]
            self.at += count
            return piece
        if count > _LONGEST_TEXT:
            raise Unreadable(f"{self.source.name}: a text of {count} bytes in the pickle is not plausible")
        start = self.tell()
        wanted = min(max(count, _BLOCK), self.source.size - start)
        if wanted < count:
            raise Unreadable(
                f"{self.source.name}: the pickle stops at byte {self.source.size} in the middle of a value; "
                "the file is cut off or damaged"
            )
        self.block = read_bytes(self.source, start, wanted)
        self._block_start, self.at = start, count
        return self.block[:count]

    def line(self, most: int = 1 << 16) -> bytes:
        """Up to the next newline, which is dropped."""
        taken: list[bytes] = []
        for _ in range(most):
            byte = self.read(1)
            if byte == b"\n":
                return b"".join(taken)
            taken.append(byte)
        raise Unreadable(f"{self.source.name}: a line in the pickle is longer than {most} bytes")

    def span(self, count: int) -> Span:
        """Skip `count` bytes and remember where they are."""
        start = self.tell()
        if count > self.source.size - start:
            raise Unreadable(
                f"{self.source.name}: {count} bytes are promised at {start} but the data ends at {self.source.size}"
            )
        self.seek(start + count)
        return Span(self.source, start, count)
