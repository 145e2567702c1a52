"""Parquet, where pyarrow is installed: columns of numbers, of vectors of one length, and of lists of any length."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stayfinite.readers.data.array import StoredArray, StoredData, UnreadableData
from stayfinite.readers.data.delimited import _IDS

if TYPE_CHECKING:
    import torch

ENDINGS = (".parquet",)
_ROWS = 16384
_MOST_IDS = 2_000_000
_RAGGED = "lists of different lengths: every value was looked at, but not sample by sample"


def read(path: str) -> StoredData:
    """The columns of numbers as one table, each column of vectors as an array of its own."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UnreadableData(
            f"{path}: reading parquet needs pyarrow; install it with: pip install 'stayfinite[data]'"
        )
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
    except (arrow.ArrowException, OSError, ValueError) as trouble:
        raise UnreadableData(f"{path}: not a readable parquet file ({_short(trouble)})") from trouble
    rows = file.metadata.num_rows
    data = StoredData(path, "parquet", Path(path).stat().st_size)
    types = arrow.types
    plain = [f.name for f in schema if types.is_integer(f.type) or types.is_floating(f.type)]
    plain = [name for name in plain if name.lower() not in _IDS]
    vectors = [f.name for f in schema if _is_vector(types, f.type)]
    names = [
        f.name
        for f in schema
        if f.name.lower() in _IDS and (types.is_string(f.type) or types.is_integer(f.type))
    ]
    if plain:
        data.arrays.append(
            StoredArray("table", "float64", (rows, len(plain)),
                        lambda begin, end: _table(path, plain, names[:1], data), None, plain)
        )  # fmt: skip
    for name in vectors:
        dtype, width = str(schema.field(name).type.value_type), _width(path, name, data)
        if width is None:  # tokens of texts, samples of sounds
            data.arrays.append(
                StoredArray(name, dtype, (-1,),
                            lambda begin, end, name=name: _values(path, name, data), None, note=_RAGGED)  # type: ignore[misc]
            )  # fmt: skip
        elif width:
            data.arrays.append(
                StoredArray(name, dtype, (rows, width),
                            lambda begin, end, name=name, width=width: _vectors(path, name, width, data), None)  # type: ignore[misc]
            )  # fmt: skip
    if not data.arrays and not data.problems:
        raise UnreadableData(f"{path}: no column of this file holds numbers or vectors of numbers")
    return data


def _is_vector(types: Any, kind: Any) -> bool:
    lists = types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind)
    return bool(lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)))


def _short(trouble: Exception) -> str:
    return str(trouble).splitlines()[0][:200]


def _batches(path: str, columns: Sequence[str], data: StoredData) -> Iterator[Any]:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        yield from parquet.ParquetFile(path).iter_batches(batch_size=_ROWS, columns=list(columns))
    except (arrow.ArrowException, OSError, ValueError) as trouble:
        data.problems.append((path, f"it cannot be read to its end: {_short(trouble)}"))


def _table(
    path: str, columns: Sequence[str], ids: Sequence[str], data: StoredData
) -> Iterator[tuple[int, torch.Tensor]]:
    import torch

    numpy = importlib.import_module("numpy")
    first = 0
    naming = not data.ids  # a second pass finds them there
    for batch in _batches(path, [*columns, *ids], data):
        values = [batch.column(name).to_numpy(zero_copy_only=False).astype("float64") for name in columns]
        for name in ids:
            if naming and len(data.ids) < _MOST_IDS:
                data.ids += [str(value) for value in batch.column(name).to_pylist()]
        yield first, torch.from_numpy(numpy.stack(values, axis=1))
        first += batch.num_rows


def _width(path: str, column: str, data: StoredData) -> int | None:
    """The one length of all lists of a column, None where they differ. Rows without a list do not count."""
    compute = importlib.import_module("pyarrow.compute")
    lengths: set[int] = set()
    for batch in _batches(path, [column], data):
        lengths.update(compute.list_value_length(batch.column(0)).drop_null().unique().to_pylist())
        if len(lengths) > 1:
            return None
    return lengths.pop() if lengths else 0


def _values(path: str, column: str, data: StoredData) -> Iterator[tuple[int, torch.Tensor]]:
    import torch

    first = 0
    for batch in _batches(path, [column], data):
        flat = batch.column(0).flatten().to_numpy(zero_copy_only=False)
        if len(flat):
            yield first, torch.from_numpy(flat.copy()).view(-1, 1)
            first += len(flat)


def _vectors(path: str, column: str, width: int, data: StoredData) -> Iterator[tuple[int, torch.Tensor]]:
    """A missing vector is NaN throughout; of whole numbers, which have no NaN, it is 0 and noted as a problem."""
    import torch

    numpy = importlib.import_module("numpy")
    first, missing = 0, 0
    for batch in _batches(path, [column], data):
        vectors = batch.column(0)
        flat = vectors.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        if vectors.null_count:
            filled = numpy.full(
                (batch.num_rows, width), numpy.nan if flat.dtype.kind == "f" else 0, flat.dtype
            )
            filled[~vectors.is_null().to_numpy(zero_copy_only=False)] = flat
            flat, missing = filled, missing + vectors.null_count * (flat.dtype.kind != "f")
        yield first, torch.from_numpy(flat.copy())
        first += batch.num_rows
    if missing:
        data.problems.append((path, f"{column}: {missing} of {first} rows have no list"))
