"""SaveMeeting: replicas on several ranks become one file. Rank 0 writes, the others wait for its word.

The ranks speak through the store they met at, not by collectives: a script that saves on rank 0 alone does not hang.
"""

from __future__ import annotations

import io
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stayfinite.recover.ranks import RankLost, Ranks, rank, world_size

_OTHERS_SECONDS = 20.0


class SaveMeeting:
    """One a guard."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._count = ranks, 0
        self._alone = False  # rank 0 has waited for the others in vain
        self.absent: list[int] = []  # ranks that did not come to the last save

    def begin(self, path: Path) -> bool:
        """Is this rank's save the one that rank 0 makes? Its path says so."""
        self._count += 1
        if rank() == 0:
            self._set("path", str(path).encode())
            return True
        same = self._wait("path").decode() == str(path)
        if not same:
            self.bring({})  # it saves elsewhere, and is not missed
        return same

    def bring(self, mine: dict[str, Any]) -> None:
        """What of this rank belongs into the file."""
        written = io.BytesIO()
        torch.save(mine, written)
        self._set(str(rank()), written.getvalue())

    def collect(self) -> dict[str, dict[str, Any]]:
        """On rank 0: what other ranks brought to this file, by rank. If it saves alone it waits once, and briefly."""
        until = time.monotonic() + (0.0 if self._alone else _OTHERS_SECONDS)
        brought: dict[str, dict[str, Any]] = {}
        self.absent = []
        for other in map(str, range(1, world_size())):
            left = max(0.01, until - time.monotonic())
            try:
                content = self._wait(other, timedelta(seconds=left))
            except RankLost:
                self.absent.append(int(other))
                continue
            if mine := torch.load(io.BytesIO(content), weights_only=True):
                brought[other] = mine
        self._alone = len(self.absent) == world_size() - 1
        return brought

    def say(self, problem: str) -> None:
        """On rank 0: the file is written, or why it is not."""
        self._set("word", problem.encode())

    def word(self) -> str:
        """On the others: the problem, or nothing."""
        return self._wait("word").decode()

    def _set(self, name: str, value: bytes) -> None:
        self._store().set(self._key(name), b"=" + value)

    def _wait(self, name: str, limit: timedelta | None = None) -> bytes:
        store, key = self._store(), self._key(name)
        try:
            store.wait([key], limit or self._ranks.timeout)
            return bytes(store.get(key))[1:]
        except RuntimeError as error:
            raise RankLost(
                f"rank {rank()}: another rank has died, or did not come to a checkpoint in time. Look at the last "
                "words of the other ranks"
            ) from error

    def _key(self, name: str) -> str:
        return f"{self._ranks.key}/save/{self._count}/{name}"

    @staticmethod
    def _store() -> Any:
        return dist.distributed_c10d._get_default_store()
