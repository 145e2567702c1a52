"""The table of contents of a zip file, read without unpacking anything and without trusting its numbers."""

from __future__ import annotations

import struct
import tempfile
import zlib
from dataclasses import dataclass
from typing import IO

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.source import (
    HandleSource,
    ReadAhead,
    Source,
    Unreadable,
    WindowSource,
    read_bytes,
)

_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
_ENTRY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_MOST_DIRECTORY = 64 << 20
_LARGE = 256 << 20
_MOST_RATIO = 100
_STEP = 1 << 20
_UTF8 = 0x0800
# encrypted (refused below), ways of packing, sizes behind the data, UTF-8
_FLAGS = 0x0001 | 0x0006 | 0x0008 | _UTF8


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside the archive."""

    name: str
    method: int
    packed: int
    size: int
    crc: int
    header: int
    entry: int
    """Where its line in the directory starts (a repair corrects the checksum there)."""


class ZipDirectory:
    """Members by name. Whatever does not fit together is listed in `problems`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.members: dict[str, Member] = {}
        self.problems: list[Problem] = []
        self._ahead = ReadAhead(source)
        count, start, size = self._end()
        if size > _MOST_DIRECTORY:
            raise Unreadable(
                f"{source.name}: its table of contents is {size} bytes; no checkpoint has that many members"
            )
        self._read_entries(read_bytes(source, start, size), start, count)
        self._check_overlap()

    @property
    def extent(self) -> tuple[int, int]:
        """Where in its file the archive starts, and its size."""
        start = self.source.start if isinstance(self.source, WindowSource) else 0
        return start, self.source.size

    def _end(self) -> tuple[int, int, int]:
        """How many entries the directory has, where it starts, and its length."""
        tail_size = min(self.source.size, 22 + 65535 + 76)
        tail_start = self.source.size - tail_size
        tail = read_bytes(self.source, tail_start, tail_size)
        at = tail.rfind(_END)
        if at < 0 or at + 22 > len(tail):
            raise Unreadable(
                f"{self.source.name}: the end of the archive is missing, so the file was cut off while being "
                "written or copied; take an older checkpoint or copy it again"
            )
        count, size, start = struct.unpack("<HII", tail[at + 10 : at + 20])
        end = tail_start + at
        if (
            tail[at + 4 : at + 8] not in (b"\x00" * 4, b"\xff" * 4)
            or tail[at + 8 : at + 10] != tail[at + 10 : at + 12]
        ):
            self._problem("damaged", "the archive says that it is spread over several disks")
        locator = at - 20
        if locator >= 0 and tail[locator : locator + 4] == _LOCATOR64:
            (where,) = struct.unpack("<Q", tail[locator + 8 : locator + 16])
            record = read_bytes(self.source, where, 56)
            if record[:4] != _END64:
                raise Unreadable(
                    f"{self.source.name}: the end of the archive is damaged (no zip64 record at {where})"
                )
            count, size, start = struct.unpack("<QQQ", record[32:56])
            end = where
        if start + size != end:
            self._problem(
                "damaged",
                f"the table of contents should be {size} bytes at {start}, and its end record is at {end}",
            )
        return count, start, size

    def _read_entries(self, table: bytes, start: int, count: int) -> None:
        at = seen = 0
        while at + 46 <= len(table) and table[at : at + 4] == _ENTRY:
            flags, method = struct.unpack("<HH", table[at + 8 : at + 12])
            crc, packed, size, name_len, extra_len, comment_len = struct.unpack(
                "<IIIHHH", table[at + 16 : at + 34]
            )
            (header,) = struct.unpack("<I", table[at + 42 : at + 46])
            raw = table[at + 46 : at + 46 + name_len]
            name = raw.decode("utf-8", "replace")
            if "\ufffd" in name and flags & _UTF8:
                self._problem("damaged", f"the name of member {seen + 1}, {name!r}, is not text", member=name)
            if flags & ~_FLAGS:
                self._problem(
                    "damaged", f"the member {name!r} has flags ({flags:#x}) that no reader knows", member=name
                )
            extra = table[at + 46 + name_len : at + 46 + name_len + extra_len]
            size, packed, header = _zip64(extra, size, packed, header)
            self._add(Member(name, method, packed, size, crc, header, start + at), encrypted=bool(flags & 1))
            at += 46 + name_len + extra_len + comment_len
            seen += 1
        if seen != count:
            self._problem(
                "damaged",
                f"the archive promises {count} members and lists {seen}",
                promised=count,
                listed=seen,
            )

    def _add(self, member: Member, encrypted: bool) -> None:
        name = member.name
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or name[1:2] == ":":
            self._problem(
                "outside", f"the member {name!r} has a path that leads outside the archive", member=name
            )
        elif encrypted:
            self._problem("damaged", f"the member {name!r} is encrypted", member=name)
        elif name in self.members:
            self._problem("duplicate", f"the member {name!r} is in the archive twice", member=name)
        else:
            self.members[name] = member

    def _check_overlap(self) -> None:
        """Two members that share bytes: a damaged table, or an archive made to unpack for ever."""
        end, before = 0, ""
        for member in sorted(self.members.values(), key=lambda item: item.header):
            if member.header < end:
                self._problem(
                    "damaged",
                    f"the members {before!r} and {member.name!r} lie on the same bytes",
                    member=member.name,
                )
                return
            end, before = member.header + 30 + len(member.name) + member.packed, member.name

    def _problem(self, what: str, message: str, **evidence: object) -> None:
        if len(self.problems) < 20:
            self.problems.append(Problem(what, self.source.name, message, dict(evidence)))

    def data_offset(self, member: Member) -> int:
        """Where the member's bytes start."""
        local = self._ahead.read(member.header, 30)
        if local[:4] != _LOCAL:
            raise Unreadable(
                f"{self.source.name}: the member {member.name!r} does not start where the archive says"
            )
        name_len, extra_len = struct.unpack("<HH", local[26:30])
        own = self._ahead.read(member.header + 30, name_len).decode("utf-8", "replace")
        if own != member.name:
            raise Unreadable(
                f"{self.source.name}: the archive lists {member.name!r} where {own!r} is stored; members were swapped"
            )
        return int(member.header + 30 + name_len + extra_len)

    @property
    def has_checksums(self) -> bool:
        """torch can be told to leave them out; then all are 0."""
        return any(member.crc for member in self.members.values())

    def damage(self, name: str) -> str | None:
        """Why the bytes of a member are not those that were written, or None. Reads all of them."""
        member = self.members[name]
        try:
            source = self.open(name)  # a packed member is checked while it is unpacked
        except Unreadable as trouble:
            return str(trouble)
        if member.method != 0 or not self.has_checksums:
            return None
        crc = 0
        for at in range(0, source.size, _STEP):
            crc = zlib.crc32(read_bytes(source, at, min(_STEP, source.size - at)), crc)
        return None if crc == member.crc else f"{self.source.name}: {wrong_checksum(member, crc)}"

    def open(self, name: str) -> Source:
        """The member as a source. Stored members are read in place; deflated ones through a temporary file."""
        member = self.members[name]
        offset = self.data_offset(member)
        if member.method == 0:
            if member.size != member.packed:
                raise Unreadable(f"{self.source.name}: the member {name!r} has two different sizes")
            return WindowSource(self.source, offset, member.size)
        if member.method != 8:
            raise Unreadable(
                f"{self.source.name}: the member {name!r} is packed in a way that is not read here"
            )
        if member.size > _LARGE and member.size > _MOST_RATIO * max(member.packed, 1):
            raise Unreadable(
                f"{self.source.name}: the member {name!r} would unpack from {member.packed} to {member.size} bytes; "
                "this looks like a zip bomb and is not unpacked"
            )
        return self._inflate(WindowSource(self.source, offset, member.packed), member)

    def _inflate(self, packed: Source, member: Member) -> Source:
        """Unpack to disk, never past the promised size."""
        handle = tempfile.TemporaryFile()  # noqa: SIM115 - the source keeps it
        try:
            self._unpack(packed, member, handle)
        except BaseException:
            handle.close()
            raise
        return HandleSource(handle, f"{self.source.name}:{member.name}")

    def _unpack(self, packed: Source, member: Member, handle: IO[bytes]) -> None:
        engine = zlib.decompressobj(-15)
        left, crc = member.size, 0
        for at in range(0, packed.size, _STEP):
            data = read_bytes(packed, at, min(_STEP, packed.size - at))
            while data and not engine.eof:
                try:
                    piece = engine.decompress(data, _STEP)
                except zlib.error as trouble:
                    raise Unreadable(
                        f"{self.source.name}: the member {member.name!r} is damaged ({trouble})"
                    ) from trouble
                left -= len(piece)
                if left < 0:
                    raise Unreadable(
                        f"{self.source.name}: the member {member.name!r} holds more than it promises"
                    )
                handle.write(piece)
                crc = zlib.crc32(piece, crc)
                data = engine.unconsumed_tail
        if left:
            raise Unreadable(
                f"{self.source.name}: the member {member.name!r} holds {left} bytes less than it promises"
            )
        if crc != member.crc and self.has_checksums:
            raise Unreadable(f"{self.source.name}: {wrong_checksum(member, crc)}")


def wrong_checksum(member: Member, crc: int) -> str:
    """What to say of a member whose bytes are not those that were written."""
    return (
        f"the checksum of the member {member.name!r} is {crc:08x} and should be {member.crc:08x}: its bytes "
        "were changed after they were written"
    )


def _zip64(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes of 4 GB and more are kept in an extra field."""
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack("<HH", extra[at : at + 4])
        if tag == 1:
            wide = extra[at + 4 : at + 4 + length]
            values = [struct.unpack("<Q", wide[i : i + 8])[0] for i in range(0, len(wide) - 7, 8)]
            if size == 0xFFFFFFFF and values:
                size = values.pop(0)
            if packed == 0xFFFFFFFF and values:
                packed = values.pop(0)
            if header == 0xFFFFFFFF and values:
                header = values.pop(0)
            break
        at += 4 + length
    return size, packed, header
