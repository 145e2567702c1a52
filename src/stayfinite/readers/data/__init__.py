"""Data files: arrays of samples, read in blocks of rows. Each format is a file with `ENDINGS` and `read`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stayfinite.readers.checkpoint import files
from stayfinite.readers.data import delimited, images, parquet, tensor_files
from stayfinite.readers.data.array import StoredArray, StoredData, UnreadableData

__all__ = ["StoredArray", "StoredData", "UnreadableData", "find_data", "read_data"]

_FORMATS = (delimited, parquet, tensor_files)
_CERTAIN = (*delimited.ENDINGS, *parquet.ENDINGS, ".pt", ".pth", ".npy", ".npz", ".safetensors")
_DEEPEST = 16


def read_data(path: str, images_in: list[str] | None = None, jobs: int = 1) -> StoredData:
    """One file, or the images of one folder."""
    if images_in is not None:
        return images.read(images_in, path, jobs)
    place = Path(path)
    if not place.is_file() and not place.is_dir():
        raise UnreadableData(f"{path}: {files.why_not_there(path)}")
    if place.stat().st_size == 0:
        raise UnreadableData(f"{path}: the file is empty; it was created and never written")
    if path.lower().endswith(images.ENDINGS):
        return images.read([path], path)
    for form in _FORMATS:
        if path.lower().endswith(form.ENDINGS):
            data: StoredData = form.read(path)
            return data
    return tensor_files.read(path)  # by what it holds, whatever its name


def find_data(path: str) -> Iterator[tuple[str, list[str] | None]]:
    """The file itself; or each data file below a folder, and each folder of images as one. Links are not followed."""
    place = Path(path)
    if not place.is_dir():
        yield path, None
        return
    yield from _below(place, 0)


def _below(folder: Path, depth: int) -> Iterator[tuple[str, list[str] | None]]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    files = [str(entry) for entry in entries if entry.is_file()]
    pictures = [path for path in files if path.lower().endswith(images.ENDINGS)]
    if pictures:
        yield str(folder), pictures
    for path in files:
        if path.lower().endswith(_CERTAIN):
            yield path, None
    if depth < _DEEPEST:
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _below(entry, depth + 1)
