"""`stayfinite live` with five pages open on a run of 100 steps a second: how far the pages are behind.

python bench/live.py [SECONDS]. Each page is a window of a real chromium. Behind is the age of the first step that a
page does not show yet, looked at several times a second. Then the cost: a small guarded training, alone and watched
by a live server with five readers, in turn; the ratio of the medians of the seconds a step.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
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

PAGES, RATE, ROUNDS = 5, 100, 4

TRAINING = """
import sys, torch
from stayfinite import Guard
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
guard = Guard(model, torch.optim.AdamW(model.parameters(), 1e-3), run_dir=sys.argv[1], quiet=True)
x, y = torch.randn(64, 64), torch.randint(8, (64,))
for _ in range(int(sys.argv[2])):
    guard.step(lambda: torch.nn.functional.cross_entropy(model(x), y))
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
def live_server(run_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "stayfinite", "live", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def measure_lag(root: Path, seconds: int) -> None:
    from browser.conftest import Browser

    browsers = [Browser(root / f"profile{i}", root) for i in range(PAGES)]
    try:
        with live_server(root / "run") as address:
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


def seconds_a_step(run_dir: Path, steps: int) -> float:
    subprocess.run([sys.executable, "-c", TRAINING, str(run_dir), str(steps)], check=True)
    lines = [json.loads(line) for line in (run_dir / "run.jsonl").read_text().splitlines()]
    return statistics.median(line["seconds"] for line in lines if "event" not in line)


def measure_cost(root: Path, steps: int = 4000) -> None:
    alone, watched = [], []
    for i in range(ROUNDS):
        alone.append(seconds_a_step(root / f"alone{i}", steps))
        with live_server(root / f"watched{i}") as address:
            stop = threading.Event()
            readers = [
                threading.Thread(target=read_on, args=(address, stop), daemon=True) for _ in range(PAGES)
            ]
            for reader in readers:
                reader.start()
            watched.append(seconds_a_step(root / f"watched{i}", steps))
            stop.set()
    for name, seconds in (("alone", alone), ("watched", watched)):
        print(
            f"a step {name}: {statistics.median(seconds) * 1e3:.3f} ms", [round(s * 1e3, 3) for s in seconds]
        )
    print(f"ratio {statistics.median(watched) / statistics.median(alone):.3f}")


def main() -> None:
    root = Path(tempfile.mkdtemp())
    try:
        measure_lag(root, int(re.sub(r"\D", "", sys.argv[1])) if len(sys.argv) > 1 else 30)
        measure_cost(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
