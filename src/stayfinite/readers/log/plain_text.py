"""Plain text, as print, logging and tqdm write it: numbers that stand behind a name."""

from __future__ import annotations

import re

from stayfinite.readers.log.block import Block, Record, Wanted, gather
from stayfinite.readers.log.lines import LineSplitter

NAME = "text"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
# loss=0.31   loss: 0.31   'loss': 0.31   | loss 0.31 |   train/loss = nan   "grad_norm": tensor(inf)
_PAIR = re.compile(
    r"""(?<![\w/.@\-])(?P<name>[A-Za-z_][\w/.@\-]{0,80}(?:[ ](?:loss|norm|rate|scale))?)['"]?\s*(?:[:=]\s*|[ ]+)"""
    rf"""(?:np\.float\d+\(|tensor\()?['"]?(?P<value>{_NUMBER})(?![\w:]|\.\d)""",
    re.I,
)
# tqdm: 120/1000 [00:12<01:30
_BAR = re.compile(r"(\d+)(?:/(\d+|\?))?(?:it|batch(?:es)?|step[s]?)?\s*\[\d+:\d\d")
_OF = re.compile(r"\b(?:step|iter(?:ation)?|it|batch|update)\w*\b['\"\s:=#\[]*(\d[\d,]*)\b", re.I)
_EPOCH_STEP = re.compile(r"\[\s*(\d+)\s*/\s*(\d+)\s*\]")
_EPOCH = re.compile(r"\bepoch\b['\"\s:=#\[]*(\d+(?:\.\d+)?)", re.I)
_CLOCKS = re.compile(
    r"^(\d|at|in|to|of|for|on|is|and|eta|took|port|pid|line|version|v|seed|rank|gpu|cuda|time|epoch|step|steps|iter|iteration|it|batch|update)$",
    re.I,
)


def sniff(head: bytes, name: str) -> bool:
    """True for text of any kind: no zero bytes, and mostly printable."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    if not head or b"\x00" in head:
        return False
    odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    return odd <= len(head) // 100


class TextReader:
    """A record for each line with at least one number behind a name; repeats of a redrawn bar count once."""

    def __init__(self, wanted: Wanted) -> None:
        self._split = LineSplitter(returns=True)
        self._last: tuple[float | None, dict[str, float]] | None = None

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        text = self._split.feed(data, last)
        if not text:
            return []
        first = self._split.count(text)
        records: list[Record] = []
        unread = 0
        for offset, line in enumerate(text.split("\n")):
            for drawn in line.split("\r"):
                if not drawn.strip():
                    continue
                record = parse(drawn, first + offset)
                if record is None:
                    unread += 1
                elif (record.step, record.numbers) != self._last:
                    self._last = (record.step, record.numbers)
                    records.append(record)
        return [gather(records, unread)] if records or unread else []


def parse(line: str, number: int) -> Record | None:
    """The numbers of one line, or None where it has none with a name."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if len(line) > 20_000:
        return None
    numbers: dict[str, float] = {}
    for match in _PAIR.finditer(line):
        name = match.group("name").strip("-.").replace(" ", "_")
        if name and not _CLOCKS.match(name):
            numbers.setdefault(name, float(match.group("value").replace(",", "")))
    if not numbers:
        return None
    return Record(number, _step(line), numbers)


def _step(line: str) -> float | None:
    for pattern in (_OF, _BAR, _EPOCH_STEP, _EPOCH):
        match = pattern.search(line)
        if match is not None:
            return float(match.group(1).replace(",", ""))
    return None
