"""TensorBoard: scalars under stayfinite/, incidents and decisions as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stayfinite.loggers.logger import PREFIX, Logger


class TensorBoardLogger(Logger):
    """Writes to a folder, or to a SummaryWriter that the script has already."""

    def __init__(self, where: str | Path | Any) -> None:
        self._where = where
        self._own = isinstance(where, (str, Path))
        self._writer: Any = None if self._own else where

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._open().add_scalar(name, value, step)

    def happened(self, step: int, kind: str, text: str) -> None:
        writer = self._open()
        if hasattr(writer, "add_text"):
            writer.add_text(f"{PREFIX}{kind}", text, step)

    def close(self) -> None:
        if self._own and self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._where))
        return self._writer
