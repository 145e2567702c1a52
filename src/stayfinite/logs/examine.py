"""From a path to findings: read the log in one pass, then ask the rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.findings import Finding, Severity, examine, worst_first
from stayfinite.findings.subjects.log import ConfiguredLogRate, Log
from stayfinite.logs.digest import Digest
from stayfinite.readers.log import UnreadableLog, chunks, core, make_reader, open_log

LOG_ENDINGS = (".jsonl", ".log", ".csv", ".tsv", ".ndjson", ".jsonl.gz", ".log.gz", ".wandb", ".out", ".err")
_DEEPEST = 8


@dataclass(slots=True)
class LogVerdict:
    """What was found in one log, worst first."""

    log: Log
    findings: list[Finding] = field(default_factory=list)
    unreadable: str | None = None

    @property
    def healthy(self) -> bool:
        """Nothing at error level."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def read_log(
    path: str, *, also: Collection[str] = (), advance: Callable[[int], None] = lambda nbytes: None
) -> Log:
    """The log at `path`; raises `UnreadableLog`. `also` names metrics whose every value is to be kept."""
    if Path(path).is_dir():
        raise UnreadableLog(f"{path}: this is a folder; name a file in it")
    digest: Digest | None = None
    nbytes = 0
    with open_log(path) as handle:
        reader = None
        try:
            for data in chunks(handle, path):
                if reader is None:
                    form, reader = make_reader(data, path, lambda name: name in also or core(name))
                    digest = Digest(path, form)
                nbytes += len(data)
                advance(len(data))
                for block in reader.feed(data):
                    digest.update(block)  # type: ignore[union-attr]
            if reader is None or digest is None:
                raise UnreadableLog(f"{path}: the file is empty; nothing was logged")
            for block in reader.feed(b"", last=True):
                digest.update(block)
        except UnreadableLog as trouble:
            message = str(trouble) if str(trouble).startswith(path) else f"{path}: {trouble}"
            raise UnreadableLog(message) from trouble
    log = digest.log
    log.nbytes = nbytes
    if not log.records or not log.series:
        raise UnreadableLog(
            f'{path}: read as {log.format}, it holds no number with a name (such as loss=0.31 or "loss": 0.31)'
        )
    return log


def examine_log(
    path: str,
    *,
    rates: Sequence[ConfiguredLogRate] = (),
    only: Collection[str] | None = None,
    also: Collection[str] = (),
    advance: Callable[[int], None] = lambda nbytes: None,
) -> LogVerdict:
    """Read and examine one log. A file that cannot be read gives a verdict with `unreadable` set."""
    try:
        log = read_log(path, also=also, advance=advance)
    except UnreadableLog as trouble:
        return LogVerdict(Log(path), unreadable=str(trouble))
    return judge(log, rates, only)


def judge(
    log: Log, rates: Sequence[ConfiguredLogRate] = (), only: Collection[str] | None = None
) -> LogVerdict:
    log.configured = list(rates)
    return LogVerdict(log, worst_first(examine(log, only)))


def find_logs(path: str) -> list[str]:
    """The file itself, or the logs in a folder and the folders below it. Links to folders are not followed."""
    place = Path(path)
    if not place.is_dir():
        return [path]
    return sorted(str(found) for found in _below(place, 0))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        name = entry.name
        if entry.is_dir():
            if depth < _DEEPEST and not entry.is_symlink() and not name.startswith("."):
                yield from _below(entry, depth + 1)
        elif entry.is_file() and (
            name.endswith(LOG_ENDINGS) or ".tfevents." in name or name == "trainer_state.json"
        ):
            yield entry
