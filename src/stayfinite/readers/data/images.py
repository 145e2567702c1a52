"""A folder of images, where Pillow is installed: each file is a sample."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stayfinite.readers.data.array import StoredArray, StoredData, UnreadableData
from stayfinite.readers.threads import on_threads

if TYPE_CHECKING:
    import torch

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
_AT_ONCE = 64
_MOST_PIXELS = 200_000_000


def available() -> bool:
    return importlib.util.find_spec("PIL") is not None


def read(paths: Sequence[str], folder: str, jobs: int = 1) -> StoredData:
    """All images as one array of their extremes; constant ones and those that cannot be decoded are named."""
    if not available():
        raise UnreadableData(
            f"{folder}: looking into images needs Pillow; install it with: pip install 'stayfinite[data]'"
        )
    data = StoredData(folder, f"{len(paths)} images", sum(Path(path).stat().st_size for path in paths))
    data.ids = [
        str(Path(path).relative_to(folder)) if Path(path) != Path(folder) else Path(path).name
        for path in paths
    ]
    data.arrays.append(
        StoredArray("images", "uint8", (len(paths), 2), lambda begin, end: _extremes(paths, data, jobs), None,
                    ["lowest pixel", "highest pixel"])
    )  # fmt: skip
    return data


def _extremes(paths: Sequence[str], data: StoredData, jobs: int) -> Iterator[tuple[int, torch.Tensor]]:
    """The lowest and the highest pixel of each image; NaN for one that cannot be read, which is noted as a problem."""
    import torch

    for first in range(0, len(paths), _AT_ONCE):
        part = paths[first : first + _AT_ONCE]
        results = on_threads(_extreme, part, jobs)
        for path, result in zip(part, results, strict=True):
            if isinstance(result, str):
                data.problems.append((path, result))
        rows = [result if not isinstance(result, str) else (0.0, 1.0) for result in results]
        yield first, torch.tensor(rows, dtype=torch.float64)


def _extreme(path: str) -> tuple[float, float] | str:
    image_module: Any = importlib.import_module("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's words about odd metadata are no news about the pixels
            with image_module.open(path) as image:
                if image.width * image.height > _MOST_PIXELS:
                    return f"it claims {image.width} x {image.height} pixels and was not unpacked"
                if image.width == 0 or image.height == 0:
                    return "it has no pixels"
                image.load()
                extremes = (
                    image.convert("RGB").getextrema()
                    if image.mode in ("P", "CMYK", "RGBA", "LA")
                    else image.getextrema()
                )
    except (OSError, ValueError, SyntaxError, EOFError, image_module.DecompressionBombError) as trouble:
        return f"it cannot be decoded ({str(trouble)[:120] or type(trouble).__name__})"
    pairs = [extremes] if not isinstance(extremes[0], (tuple, list)) else list(extremes)
    # An image is constant when each of its channels is.
    if all(low == high for low, high in pairs):
        return float(pairs[0][0]), float(pairs[0][0])
    low, high = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    return float(low), float(high if high > low else low + 1)
