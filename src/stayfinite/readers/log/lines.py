"""Bytes of a growing file as whole lines of text, whatever the encoding; what is not yet a line waits."""

from __future__ import annotations

import codecs

LONGEST_LINE = 8 << 20
"""No training log has longer lines; what is longer is passed over, so that a binary file cannot fill the memory."""


class LineSplitter:
    """`feed` bytes, get text that ends at the end of a line. With `returns`, a carriage return ends one too."""

    def __init__(self, *, returns: bool = False) -> None:
        self.line = 1
        """The number of the first line of the next text."""
        self._returns = returns
        self._rest: list[bytes] = []
        self._waiting = 0
        self._decoder: codecs.IncrementalDecoder | None = None
        self._started = False

    def feed(self, data: bytes, last: bool = False) -> str:
        """The complete lines; with `last`, also a line without an end."""
        if not self._started and data:
            self._started = True
            if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # a Windows shell redirects in UTF-16
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
            elif data[:3] == b"\xef\xbb\xbf":
                data = data[3:]
        if self._decoder is not None:
            data = self._decoder.decode(data, last).encode("utf-8", "replace")
        end = data.rfind(b"\n") + 1
        if self._returns:
            end = max(end, data.rfind(b"\r") + 1)
        if last:
            end = len(data)
        if end == 0 and not last:
            self._wait(data)
            return ""
        whole = b"".join([*self._rest, data[:end]])
        self._rest, self._waiting = [], 0
        self._wait(data[end:])
        return whole.decode("utf-8", "replace")

    def count(self, text: str) -> int:
        """The number of the first line of `text`, which is then counted as read."""
        first = self.line
        self.line += text.count("\n")
        return first

    def _wait(self, data: bytes) -> None:
        if not data:
            return
        if self._waiting + len(data) > LONGEST_LINE:
            self._rest, self._waiting = [], 0
            return
        self._rest.append(data)
        self._waiting += len(data)
