"""From a data file to findings: read its arrays in blocks, on several threads, then ask the rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from stayfinite.data import fit
from stayfinite.data.middle_words import MiddleWords
from stayfinite.data.repeated import ONE_WORD, by_whole_rows, words_that_suffice
from stayfinite.data.rows import RowState, Watch, duplicates, merge, update
from stayfinite.data.uses import use_of
from stayfinite.findings import Finding, Severity, examine, worst_first
from stayfinite.findings.subjects.data_set import DataArray, DataProblem, DataSet, Expectation, Use
from stayfinite.readers.checkpoint import Unreadable
from stayfinite.readers.checkpoint.contents import ITEM_SIZE
from stayfinite.readers.data import StoredArray, StoredData, UnreadableData, read_data
from stayfinite.readers.data.array import BLOCK
from stayfinite.readers.threads import on_threads

if TYPE_CHECKING:
    import torch

_UNIT = 64 << 20
"""Bytes that a thread takes at a time. Threads that read half a gigabyte apart from each other took half as long again
for a file of 10 GB that comes from the disk, and twice the processors' time."""
_MOST_ROWS = 30_000_000
_MOST_COMPARED = 20_000
_MOST_BYTES_COMPARED = 256 << 20
_MOST_HELD = 4_000_000
"""Labels, lengths and boxes up to so many values are held whole, to be compared with each other."""


@dataclass(slots=True)
class DataVerdict:
    """What was found in one data file (or loader), worst first."""

    data: DataSet
    findings: list[Finding] = field(default_factory=list)
    unreadable: str | None = None

    @property
    def healthy(self) -> bool:
        """Nothing at error level."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def examine_data(
    path: str,
    *,
    images_in: list[str] | None = None,
    expected: Expectation | None = None,
    labels: Collection[str] = (),
    jobs: int = 1,
    advance: Callable[[int], None] = lambda nbytes: None,
    only: Collection[str] | None = None,
) -> DataVerdict:
    """Examine one file, or the images of a folder. What cannot be read gives a verdict with `unreadable` set.

    `labels` names arrays or columns that are labels, where their names do not say so.
    """
    wanted = expected or Expectation()
    try:
        stored = read_data(path, images_in, jobs)
    except (UnreadableData, Unreadable, OSError) as trouble:
        data = DataSet(path, problems=[DataProblem(path, str(trouble))], expected=wanted)
        return DataVerdict(data, judge(data, only), unreadable=str(trouble))
    data = DataSet(path, stored.format, stored.nbytes, expected=wanted)
    held: dict[str, torch.Tensor] = {}
    for array in stored.arrays:
        for measured in measure(array, data, labels, held, jobs, advance):
            data.arrays.append(measured)
    seen = dict.fromkeys(stored.problems)  # what is read twice has its problems twice
    data.problems += [DataProblem(file, message) for file, message in seen]
    data.ids = stored.ids if _fits(stored, data) else []
    fit.find_boxes(data, held)
    fit.find_alignments(data, held)
    return DataVerdict(data, judge(data, only))


def judge(data: DataSet, only: Collection[str] | None = None) -> list[Finding]:
    return worst_first(examine(data, only))


def _fits(stored: StoredData, data: DataSet) -> bool:
    return any(array.rows == len(stored.ids) for array in data.arrays)


def watch_for(use: Use, expected: Expectation) -> Watch:
    """What to look for in an array of this use."""
    if use is Use.LABEL:
        high = expected.classes - 1 if expected.classes is not None else None
        return Watch(0, high, ignore=expected.ignore_index, duplicates=False)
    if use in (Use.INPUT, Use.EMBEDDING):
        return Watch(expected.low, expected.high, expected.norm if use is Use.EMBEDDING else None)
    return Watch(duplicates=False)


def measure(
    array: StoredArray,
    data: DataSet,
    labels: Collection[str],
    held: dict[str, torch.Tensor],
    jobs: int,
    advance: Callable[[int], None],
) -> Iterable[DataArray]:
    """One array; a table with a column of labels gives two."""
    use = Use.LABEL if array.name in labels else use_of(array.name, array.dtype, array.shape, data.path)
    parts: list[tuple[str, list[int] | None, Use]] = [(array.name, None, use)]
    if array.columns and array.name == "table":
        columns = {
            name: Use.LABEL if name in labels else use_of(name, "int64", (1,)) for name in array.columns
        }
        special = [name for name, kind in columns.items() if kind in (Use.LABEL, Use.LENGTH, Use.OTHER)]
        named = [name for name in special if columns[name] is Use.LABEL or columns[name] is Use.LENGTH]
        plain = [index for index, name in enumerate(array.columns) if name not in named]
        parts = [(array.name, plain, Use.INPUT)] if plain else []
        parts += [(name, [array.columns.index(name)], columns[name]) for name in named]
    watches = [_watch(kind, data.expected, array) for _, _, kind in parts]
    words = MiddleWords(array) if watches[0].part == ONE_WORD else None
    states = _states(array, parts, watches, words, held, jobs, advance)
    for (name, chosen, kind), state, watch in zip(parts, states, watches, strict=True):
        columns_here = (
            [array.columns[index] for index in chosen] if chosen is not None else list(array.columns)
        )
        made = _described(array, name, kind, state, columns_here, chosen)
        pairs = words.repeated(jobs) if words is not None else duplicates(state)
        if words is None and watch.part:
            pairs = by_whole_rows(array, pairs)
        if pairs:
            _confirm(made, pairs, array, chosen)
        yield made


def _states(
    array: StoredArray,
    parts: Sequence[tuple[str, list[int] | None, Use]],
    watches: Sequence[Watch],
    words: MiddleWords | None,
    held: dict[str, torch.Tensor],
    jobs: int,
    advance: Callable[[int], None],
) -> list[RowState]:
    def run(begin: int, end: int | None) -> list[RowState]:
        made = [RowState() for _ in parts]
        take = words.taker() if words is not None else None
        for first, block in array.blocks(begin, end):
            if take is not None:
                take(block, first)
            for state, watch, (name, chosen, kind) in zip(made, watches, parts, strict=True):
                rows = block if chosen is None else block[:, chosen]
                update(state, rows, first, watch)
                if kind in (Use.LABEL, Use.LENGTH, Use.BOX):
                    fit.hold(held, name, rows, array.shape, _MOST_HELD)
            advance(block.nbytes)
        if words is not None:
            words.find_constant(made[0], begin, begin + made[0].rows, watches[0])
        return made

    if array.rows is None or jobs <= 1:
        return run(0, None)
    width = max(1, _bytes(array) // max(array.rows, 1))
    whole_blocks = max(1, BLOCK // width)
    step = max(1, _UNIT // width // whole_blocks) * whole_blocks
    units = [(begin, min(begin + step, array.rows)) for begin in range(0, array.rows, step)]
    if len(units) < 2 or any(kind in (Use.LABEL, Use.LENGTH, Use.BOX) for _, _, kind in parts):
        return run(0, None)
    results = on_threads(lambda unit: run(*unit), units, jobs)
    return [merge([result[index] for result in results]) for index in range(len(parts))]


def _bytes(array: StoredArray) -> int:
    return prod(array.shape) * ITEM_SIZE.get(array.dtype, 8)


def _watch(kind: Use, expected: Expectation, array: StoredArray) -> Watch:
    watch = watch_for(kind, expected)
    if array.note or (array.rows is not None and array.rows > _MOST_ROWS):
        watch = replace(watch, duplicates=False)
    if len(array.shape) < 2 and not array.columns:
        watch = replace(watch, samples=False)
    if not watch.duplicates or not watch.samples or array.columns:
        return watch
    return replace(watch, part=words_that_suffice(array))


def _described(
    array: StoredArray, name: str, kind: Use, state: RowState, columns: list[str], chosen: list[int] | None
) -> DataArray:
    table = bool(array.columns) or chosen is not None
    shape = (state.rows, len(columns)) if table else (state.rows, *array.shape[1:])
    made = describe(state, name, kind, array.dtype, shape)
    made.columns, made.note = columns, array.note
    if state.still is not None and state.rows > 1:
        made.constant_columns = state.still.tolist()
    if array.rows is not None and array.rows > _MOST_ROWS:
        made.note = f"{array.rows} rows are too many to look for duplicates among"
    return made


def describe(state: RowState, name: str, kind: Use, dtype: str, shape: tuple[int, ...]) -> DataArray:
    """The state of the rows as the array that rules examine."""
    made = DataArray(name, kind, dtype, shape, rows=state.rows, minimum=state.minimum, maximum=state.maximum)
    made.nan, made.inf, made.bad, made.constant, made.zero = (
        state.nan,
        state.inf,
        state.bad,
        state.constant,
        state.zero,
    )
    made.ignored, made.outside, made.outside_values = state.ignored, state.outside, state.outside_values
    made.far, made.far_value = state.far, state.far_value
    made.first_bad = state.first_bad
    made.typical = sorted(state.block_peaks)[len(state.block_peaks) // 2] if state.block_peaks else 0.0
    if state.looked_at:
        made.mean = state.total / state.looked_at
        made.deviation = max(0.0, state.squares / state.looked_at - made.mean**2) ** 0.5
        made.whole_numbers = state.whole
    return made


def _confirm(
    made: DataArray, pairs: list[tuple[int, int]], array: StoredArray, chosen: list[int] | None
) -> None:
    """Compare rows with the same fingerprint value by value; zero rows are reported as such, not as duplicates."""
    most = _MOST_BYTES_COMPARED // max(1, 2 * _bytes(array) // max(made.rows, 1))
    looked = pairs[: max(1, min(_MOST_COMPARED, most))]
    rows = _fetch(array, {row for pair in looked for row in pair}, chosen)
    found = _equal(looked, rows)
    made.duplicates.count = len(found)
    if len(pairs) > len(looked) and found:  # the rest by the share of those that were compared
        made.duplicates.count = int(len(pairs) * len(found) / len(looked))
    made.duplicates.first = [row for row, _ in found[: made.duplicates.MOST]]
    made.duplicate_of = [other for _, other in found[: made.duplicates.MOST]]


def _equal(pairs: list[tuple[int, int]], rows: dict[int, torch.Tensor]) -> list[tuple[int, int]]:
    """(row, the last row before it that is the same), of pairs in order that link the rows of one fingerprint."""
    found: list[tuple[int, int]] = []
    kinds: dict[int, list[int]] = {}
    """Of a row: the last row of each content with its fingerprint, shared by all that have it."""
    for row, other in pairs:
        if row not in rows or other not in rows:
            continue
        known = kinds[row] = kinds.setdefault(other, [other])
        same = next((at for at, seen in enumerate(known) if rows[seen].equal(rows[row])), None)
        if same is None:
            known.append(row)
            continue
        if bool((rows[row] != 0).any()):
            found.append((row, known[same]))
        known[same] = row
    return found


def _fetch(array: StoredArray, wanted: set[int], chosen: list[int] | None) -> dict[int, torch.Tensor]:
    """Single rows: read directly where that is possible, else in another pass."""
    found: dict[int, torch.Tensor] = {}
    if array.rows is not None:
        for row in sorted(wanted):
            for _, block in array.blocks(row, row + 1):
                found[row] = block[0].clone()
        return found
    for first, block in array.blocks(0, None):
        for row in [row for row in wanted if first <= row < first + block.shape[0]]:
            values = block[row - first]
            found[row] = (values if chosen is None else values[chosen]).clone()
    return found
