"""After bytes inside a stored zip member were replaced: put its checksum right, in the table and beside the data."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from stayfinite.readers.checkpoint.source import FileSource, WindowSource, read_bytes
from stayfinite.readers.checkpoint.zip_directory import Member, ZipDirectory

_BLOCK = 4 << 20


def correct_checksums(path: Path, archive: tuple[int, int], changed: set[int]) -> None:
    """For each member of the archive at (start, size) of the file that holds one of the changed bytes."""
    start, size = archive
    directory = ZipDirectory(WindowSource(FileSource(str(path)), start, size))
    patches: dict[int, int] = {}
    for member in directory.members.values():
        begin = directory.data_offset(member)
        if any(begin <= place - start < begin + member.size for place in changed):
            for place, crc in _patches(directory, member, begin).items():
                patches[start + place] = crc
    with path.open("r+b") as handle:
        for place, crc in patches.items():
            handle.seek(place)
            handle.write(struct.pack("<I", crc))


def _patches(directory: ZipDirectory, member: Member, begin: int) -> dict[int, int]:
    """Where the checksum of a member is written (twice), and what it has to be."""
    source, crc = directory.source, 0
    for at in range(0, member.size, _BLOCK):
        crc = zlib.crc32(read_bytes(source, begin + at, min(_BLOCK, member.size - at)), crc)
    (flags,) = struct.unpack("<H", read_bytes(source, member.header + 6, 2))
    beside = member.header + 14
    if flags & 8:  # it follows the data
        after = begin + member.size
        beside = after + (4 if read_bytes(source, after, 4) == b"PK\x07\x08" else 0)
    return {member.entry + 16: crc, beside: crc}
