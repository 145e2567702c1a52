"""Channel: one follower, many pages. Each change is worked out once and handed to all; who is too slow begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from stayfinite.findings import dumps
from stayfinite.report.live.follower import RunFollower
from stayfinite.report.record.folder import is_run_folder, runs_in

_SECONDS = 0.4
"""Between two looks at the folder: together with the recorder's second this keeps a page less than two behind."""

_WAITING = 32
_END = ""


class Channel:
    """Looks at the folder only while a page is open."""

    def __init__(self, run_dir: Path, ends: Callable[[], bool]) -> None:
        self._ends = ends
        self.follower = RunFollower(run_dir)
        self._queues: set[asyncio.Queue[str | None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncIterator[str]:
        """The whole, then every change, as JSON."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_WAITING)
        self._queues.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        try:
            yield await self._whole()
            while True:
                message = await queue.get()
                if message == _END:
                    return
                yield await self._whole() if message is None else message
        finally:
            self._queues.discard(queue)

    async def _whole(self) -> str:
        return await asyncio.to_thread(lambda: dumps(self.follower.whole()))

    async def _follow(self) -> None:
        try:
            while self._queues and not self._ends():
                more = await asyncio.to_thread(self.follower.poll)
                self._hand_out(await asyncio.to_thread(self._news))
                await asyncio.sleep(0.01 if more else _SECONDS)
        finally:
            self._hand_out(_END)  # whatever happened: a page that is left alone connects anew

    def _news(self) -> str:
        """What changed; at least how long nothing did, which also tells a page that the server lives."""
        change = self.follower.changes()
        quiet = round(self.follower.quiet_seconds, 1)
        if change is None and not self.follower.has_begun and self._is_a_folder_of_runs():
            return dumps({"reload": True})
        return dumps(
            {**(change or {}), "quiet": quiet, "begun": self.follower.has_begun, "fate": self.follower.fate}
        )

    def _is_a_folder_of_runs(self) -> bool:
        return not is_run_folder(self.follower.path) and bool(runs_in(self.follower.path))

    def _hand_out(self, message: str) -> None:
        for queue in self._queues:
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:  # a page that sleeps: it gets the whole when it wakes
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
