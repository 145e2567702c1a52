"""`stayfinite live` with five pages open on a run of 100 steps a second: how far the pages are behind.

    python bench/live.py [SECONDS] [--only lag|cost]

Each page is a window of a real chromium. Behind is the age of the first step that a page does not show yet, looked at
several times a second.

Then the cost. The server is another process, so what it can cost a training is processor time of that training (it
reads the file that the training writes); seconds between two steps say what else the machine does. So one small guarded
training goes on at the same pace while its server with five readers is stopped and let go, in turn, every 3 seconds;
what is compared is the processor time of a step, of each stretch with its neighbours. `alone / alone` is how far
stretches of the same kind differ: as much as that cannot be told from noise.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

PAGES, RATE = 5, 100
STRETCHES, SECONDS = 41, 3.0
_SETTLES = 0.5  # seconds after the server was stopped or let go that are not counted
_FIRST_STEPS = 300  # many of them are sampled

TRAINING = """
import json, os, sys, time, torch
from stayfinite import Guard
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
guard = Guard(model, torch.optim.AdamW(model.parameters(), 1e-3), run_dir=sys.argv[1], quiet=True)
x, y = torch.randn(64, 64), torch.randint(8, (64,))
end, rate = sys.argv[2], float(sys.argv[3])
took = []
while not os.path.exists(end):
    before = time.process_time()
    guard.step(lambda: torch.nn.functional.cross_entropy(model(x), y))
    took.append((time.monotonic(), time.process_time() - before))
    time.sleep(max(0.0, took[-1][0] + 1 / rate - took[-1][1] - time.monotonic()))
print(json.dumps(took))
guard.close()
"""


class Writer(threading.Thread):
    """A run that writes as the guard does, at a steady rate; remembers when each step was made."""

    def __init__(self, run_dir: Path, steps: int) -> None:
        super().__init__(daemon=True)
        self._run_dir, self._steps = run_dir, steps
        self.made: list[float] = []

    def run(self) -> None:
        from report.written_runs import step_line, vitals
        from stayfinite.watch.recorder import Recorder

        recorder = Recorder(self._run_dir)
        start = time.monotonic()
        for step in range(self._steps):
            recorder.write(step_line(step))
            self.made.append(time.monotonic())
            if step % 50 == 0:
                recorder.event(vitals(step))
            time.sleep(max(0.0, start + (step + 1) / RATE - time.monotonic()))
        recorder.close()

    def behind(self, shown: int) -> float:
        """The age of the first step that is not shown."""
        return time.monotonic() - self.made[shown + 1] if shown + 1 < len(self.made) else 0.0


@contextmanager
def live_server(run_dir: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "stayfinite", "live", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def measure_lag(root: Path, seconds: int) -> None:
    from browser.conftest import Browser

    browsers = [Browser(root / f"profile{i}", root) for i in range(PAGES)]
    try:
        with live_server(root / "run") as (address, _):
            for browser in browsers:
                browser.look()
                browser.open(address)
            writer = Writer(root / "run", RATE * seconds)
            writer.start()
            time.sleep(2)
            lags: list[list[float]] = [[] for _ in browsers]
            while writer.is_alive():
                for i, browser in enumerate(browsers):
                    lags[i].append(writer.behind(int(browser.ask("return document.body.dataset.step || -1"))))
                time.sleep(0.05)
            for i, lag in enumerate(lags):
                usual, most = statistics.median(lag), max(lag)
                print(
                    f"page {i + 1}: behind by {usual:.2f} s (median), {most:.2f} s (most), {len(lag)} looks"
                )
    finally:
        for browser in browsers:
            browser.driver.quit()


def read_on(address: str, stop: threading.Event) -> None:
    parts = urlsplit(address)
    with closing(
        http.client.HTTPConnection(str(parts.hostname), int(parts.port or 0), timeout=30)
    ) as connection:
        connection.request(
            "GET", "/events", headers={"Cookie": "stayfinite=" + parts.query.removeprefix("token=")}
        )
        answer = connection.getresponse()
        while not stop.is_set() and answer.readline():
            continue


def measure_cost(root: Path) -> None:
    """One training; its server is stopped in every second stretch."""
    end = root / "end"
    command = [sys.executable, "-c", TRAINING, str(root / "watched"), str(end), str(RATE)]
    stop, stretches = threading.Event(), []
    with live_server(root / "watched") as (address, server):
        for _ in range(PAGES):
            threading.Thread(target=read_on, args=(address, stop), daemon=True).start()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
            record = root / "watched" / "run.jsonl"
            while not record.exists() or record.read_bytes().count(b"\n") < _FIRST_STEPS:
                time.sleep(0.5)
            for number in range(STRETCHES):
                server.send_signal(signal.SIGCONT if number % 2 else signal.SIGSTOP)
                began = time.monotonic() + _SETTLES
                time.sleep(SECONDS)
                stretches.append((began, time.monotonic()))
            server.send_signal(signal.SIGCONT)
            end.touch()
            assert training.stdout is not None
            took = json.loads(training.stdout.read())
        stop.set()
    costs = [
        statistics.fmean(cost for at, cost in took if began <= at <= ended) for began, ended in stretches
    ]
    alone, watched = costs[0::2], costs[1::2]
    paces = [sum(began <= at <= ended for at, _ in took) / (ended - began) for began, ended in stretches]
    print(f"processor time of a step: {statistics.median(alone) * 1e3:.3f} ms alone, ", end="")
    print(f"{statistics.median(watched) * 1e3:.3f} ms watched by {PAGES}; {min(paces):.0f} steps/s and more")
    with_neighbours = [w / ((a + b) / 2) for w, a, b in zip(watched, alone, alone[1:], strict=False)]
    without = [b / ((a + c) / 2) for a, b, c in zip(alone, alone[1:], alone[2:], strict=False)]
    for name, ratios in (("watched / alone", with_neighbours), ("alone / alone", without)):
        usual, middle = statistics.median(ratios), statistics.quantiles(ratios, n=4)
        print(
            f"{name}: {usual:.3f} (median of {len(ratios)}; middle half {middle[0]:.3f} to {middle[2]:.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seconds", type=int, nargs="?", default=30)
    parser.add_argument("--only", choices=("lag", "cost"))
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    try:
        if arguments.only != "cost":
            measure_lag(root, arguments.seconds)
        if arguments.only != "lag":
            measure_cost(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
