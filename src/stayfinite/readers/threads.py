"""A task for each of many items, on several threads, which Ctrl-C can end at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from stayfinite.hooks.interrupts import interrupts_wait

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(
    task: Callable[[Item], Result], items: Sequence[Item], jobs: int, stop: threading.Event | None = None
) -> list[Result]:
    """The results in the order of the items. An error or Ctrl-C sets `stop` and begins no further item.

    No pool of concurrent.futures: its locks are Python's, and Ctrl-C between the taking of one and its giving back left
    the threads waiting for it, and us for them. A queue is waited at in C, where that cannot be.
    """
    if jobs <= 1 or len(items) <= 1:
        return [task(item) for item in items]
    stop = stop or threading.Event()
    results: dict[int, Result] = {}
    places = iter(range(len(items)))
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        error = None
        try:
            for place in places:  # one iterator for all threads: each place is given out once
                if stop.is_set():
                    break
                results[place] = task(items[place])
        except BaseException as raised:  # noqa: BLE001 - it is raised where the results are waited for
            error = raised
        ended.put(error)

    threads: list[threading.Thread] = []
    try:
        with interrupts_wait():
            for _ in range(min(jobs, len(items))):
                threads.append(threading.Thread(target=work, name="stayfinite"))
                threads[-1].start()
        for _ in threads:
            error = ended.get()
            if error is not None:
                raise error
    except BaseException:
        stop.set()
        raise
    finally:
        with interrupts_wait():
            for thread in threads:
                thread.join()
    return [results[place] for place in range(len(items))]
