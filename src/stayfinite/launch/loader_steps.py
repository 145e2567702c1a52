"""LoaderSteps: batches of a DataLoader mark where a step begins. Those of a second loader, or read ahead, do not."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stayfinite.guarding.loop import WatchedLoop
from stayfinite.launch.failure_detector import FailureDetector
from stayfinite.launch.handed_batches import HandedBatches

_BESIDE_KEPT = 8


class LoaderSteps:
    """The first loader to give a batch in a step is the one whose batches are the steps."""

    def __init__(self, loop: Callable[[], WatchedLoop | None], detector: FailureDetector) -> None:
        """`loop`: what guards the script now; asking begins it, if there is something to guard."""
        self._loop, self._detector, self._tracer = loop, detector, detector.tracer
        self._driving: weakref.ref[Any] | None = None  # the loader whose batches are the steps
        self._driven: Iterator[Any] | None = None
        self._reading_ahead = False  # inside of a framework's loader, whose batches are the steps
        self._beside: list[tuple[Any, Any]] = []  # batches that other loaders gave in the same step

    @property
    def drive(self) -> bool:
        """A loader's batches are the steps now."""
        return self._driven is not None

    def leave(self) -> None:
        """A loop that was left ends here, with what was refused in it."""
        self._driven = None

    def forget(self) -> None:
        self._driving = self._driven = None
        self._beside = []

    def of_framework(self, original: Any, loader: Any) -> Iterator[Any]:
        return HandedBatches(original(loader), self._next_of_framework)

    def _next_of_framework(self, original: Any, handed: Any) -> Any:
        """The batch that is trained on next. Those that are read for it, or ahead of it, are no steps."""
        before = self._reading_ahead

        def read(handed: Any) -> Any:
            self._reading_ahead = self._detector.reading_ahead = True
            try:
                return original(handed)
            finally:
                self._reading_ahead = self._detector.reading_ahead = before

        if before:
            return original(handed)
        batch = self.next_batch(read, handed)
        self._detector.saw_batch(batch)
        return batch

    def next_batch(self, original: Any, iterator: Any) -> Any:
        """The next batch of a DataLoader."""
        if self._reading_ahead:
            return original(iterator)
        if threading.current_thread() is not threading.main_thread():
            return original(iterator)  # batches fetched ahead
        loop = self._loop()
        if loop is None:
            return original(iterator)
        driving = self._driving() if self._driving is not None else None
        if driving is not None and driving is not iterator:
            return self._batch_beside(original, iterator, loop)
        if driving is None or self._driven is None:
            self.leave()  # before the next begins
            self._driving = weakref.ref(iterator)
            self._driven = loop.bodies(self._batches_of(weakref.ref(iterator), original))
        with self._tracer.only_looking():
            return self._advance(self._driven, loop)

    def _batches_of(self, iterator: weakref.ref[Any], original: Any) -> Iterator[Any]:
        """What a DataLoader's iterator gives; it stays the script's own and ends with it."""
        while (living := iterator()) is not None:
            try:
                with self._tracer.following_again():
                    batch = original(living)
            except StopIteration:
                return
            del living
            yield batch

    def _advance(self, driven: Iterator[Any], loop: WatchedLoop) -> Any:
        if not loop.replaying:
            self._beside = []
        try:
            return next(driven)
        except BaseException:
            self._driving = self._driven = None
            raise

    def _batch_beside(self, original: Any, iterator: Any, loop: WatchedLoop) -> Any:
        """A second loader in the same step; in a replay it gives again what it gave before."""
        if loop.replaying:
            for position, (of, batch) in enumerate(self._beside):
                if of is iterator:
                    del self._beside[position]
                    return batch
        batch = original(iterator)
        self._beside.append((iterator, batch))
        del self._beside[:-_BESIDE_KEPT]
        return batch
