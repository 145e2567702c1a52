"""A task for each of many items on several threads: in order, and ended at once by an error or Ctrl-C."""

import subprocess
import sys
import threading

import pytest

import preloaded
from stayfinite.readers.threads import on_threads

INTERRUPTED = """
import random, signal, sys
from stayfinite.readers.threads import on_threads

signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
draw = random.Random(int(sys.argv[1]))
ended = 0
for _ in range(300):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 5e-3))
            on_threads(str, range(5000), 4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        ended += 1
print(ended)
"""


@pytest.mark.parametrize("jobs", [1, 2, 7, 200])
def test_results_are_in_order(jobs: int) -> None:
    assert on_threads(lambda n: n * n, range(100), jobs) == [n * n for n in range(100)]
    assert on_threads(str, [], jobs) == []


def test_an_error_is_raised_and_begins_nothing_more() -> None:
    stop, begun = threading.Event(), []

    def task(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        if number > 3:
            stop.wait(10)

    with pytest.raises(ValueError, match="three"):
        on_threads(task, range(1000), 2, stop)
    assert stop.is_set() and len(begun) <= 6


def test_ctrl_c_at_any_moment_ends_it() -> None:
    process = preloaded.start([sys.executable, "-c", INTERRUPTED, "1"])
    try:
        output, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert int(output) > 50
