"""RankPlace: which of how many processes of a launch this one is, and who reports what it finds."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stayfinite.launch.rank_report import FOLDER_VARIABLE
from stayfinite.sandbox import syscalls


@dataclass(frozen=True, slots=True)
class RankPlace:
    """As the launcher says in the environment, whether or not the script makes use of it."""

    rank: int = 0
    ranks: int = 1
    reports: Path | None = None  # whoever started this process waits for its report there

    @classmethod
    def of_environment(cls) -> RankPlace:
        ranks, rank = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
        folder = os.environ.pop(FOLDER_VARIABLE, None)
        if not (ranks.isdigit() and rank.isdigit() and int(ranks) > 1):
            return cls(reports=Path(folder) if folder else None)
        return cls(int(rank), int(ranks), Path(folder) if folder else None)

    @property
    def several(self) -> bool:
        return self.ranks > 1

    @contextmanager
    def last_words(self) -> Iterator[None]:
        """torchrun ends all ranks as soon as one has failed: what this one has to say comes first."""
        if not self.several or threading.current_thread() is not threading.main_thread():
            yield
            return
        came: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            if came:
                os.kill(os.getpid(), signal.SIGTERM)

    def die_with_launcher(self) -> None:
        """A rank whose launcher was killed has nobody to report to, and others wait for it in vain."""
        if self.reports is not None and sys.platform == "linux":
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)
