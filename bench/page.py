"""The page of a long run: how long `stayfinite report` takes, how large the page is, how long it takes to open.

python bench/page.py [STEPS ...]; 100,000 and 1,000,000 without. The browser is Debian's chromium (make test-browser
installs it). "report" is in seconds of one processor; "open" is from the request to the moment every plot is drawn, the
best and the worst of five.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def write_run(run_dir: Path, steps: int) -> None:
    """A step has what the guard writes; now and then one is refused, and vitals come every 50 steps."""
    draw = random.Random(0)
    run_dir.mkdir()
    with (run_dir / "run.jsonl").open("w") as file:
        file.write('{"event":"start","step":0,"environment":{"torch":"2.13.0"},"state_bytes":107060}\n')
        for step in range(steps):
            loss = 2 * 0.999996**step + draw.random() / 5
            line = {
                "step": step, "loss": loss, "components": {"kl": loss / 10, "ce": loss * 0.9},
                "grad_norm": abs(draw.gauss(1, 0.3)), "lr": [0.005, 0.001], "scale": 65536.0,
                "update_ratio": draw.random() / 100, "seconds": 0.004, "memory_mb": 321.97, "action": "none",
            }  # fmt: skip
            if step % 5003 == 777:
                line |= {"loss": "nan", "action": "skip", "what": "the loss is nan"}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            if step % 50 == 0:
                modules = {f"blocks.{i}": [draw.random() * 10, draw.random(), 1.1] for i in range(24)}
                file.write(json.dumps({"event": "vitals", "step": step, "modules": modules}) + "\n")


def main() -> None:
    from browser.conftest import Browser  # selenium is needed only here

    counts = [int(count.replace(",", "")) for count in sys.argv[1:]] or [100_000, 1_000_000]
    root = Path(tempfile.mkdtemp())
    browser = Browser(root / "profile", root)
    browser.look()
    print(f"{'steps':>10}  {'run.jsonl':>10}  {'report':>8}  {'page':>8}  open")
    try:
        for steps in counts:
            run = root / str(steps)
            write_run(run, steps)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            command = [sys.executable, "-m", "stayfinite", "report", str(run)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            page = run / "report.html"
            opened = []
            for _ in range(5):
                browser.driver.get("about:blank")
                started = time.perf_counter()
                browser.driver.get(page.as_uri())
                browser.wait("document.querySelectorAll('figure.chart:not([data-drawn])').length === 0")
                opened.append(time.perf_counter() - started)
            sizes = [f"{path.stat().st_size / 1e6:.1f} MB" for path in (run / "run.jsonl", page)]
            print(
                f"{steps:>10,}  {sizes[0]:>10}  {took:6.1f} s  {sizes[1]:>8}  {min(opened):.2f} to {max(opened):.2f} s"
            )
    finally:
        browser.driver.quit()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
