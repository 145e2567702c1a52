"""How fast `stayfinite logs` reads a JSON-lines log, against reading the bytes and against json.loads of each line.

    python bench/logs.py                 1 GB, and how much memory it takes
    python bench/logs.py --size 0.2      a smaller file

Each measurement is a process of its own, in turn; the file is in the page cache. The log has a step, loss, gradient
norm, learning rate, loss scale, and three more numbers a line.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

_CHILDREN = {
    "read": """
with open(path, "rb", buffering=0) as handle:
    buffer = memoryview(bytearray(1 << 20))
    while handle.readinto(buffer):
        pass
""",
    "json.loads": """
with open(path) as handle:
    for line in handle:
        json.loads(line)
""",
    "logs": """
from stayfinite.logs import examine_log
verdict = examine_log(path)
assert verdict.log.trouble is not None and verdict.log.trouble.point.step == int(sys.argv[2]), verdict
""",
}
SECONDS_PER_GB, MEGABYTES = 30.0, 200.0


def child(what: str, path: Path, failed: int) -> dict[str, float]:
    """One measurement in a fresh process: seconds, and the most memory it held."""
    code = (
        "import json, resource, sys, time\npath = sys.argv[1]\nstart = time.perf_counter()\n"
        + _CHILDREN[what]
        + "print(json.dumps({'seconds': time.perf_counter() - start, 'processor': time.process_time(), "
        "'megabytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(failed)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def write(path: Path, gigabytes: float) -> int:
    """A noisy run whose loss is NaN in its last thousand steps; returns the step at which that begins."""
    rng = random.Random(0)
    steps = int(gigabytes * 1e9 / 185)
    with path.open("w") as handle:
        for step in range(steps):
            loss = 2 * math.exp(-step / 1e6) + rng.random() if step < steps - 1000 else math.nan
            line = {"step": step, "loss": loss, "grad_norm": rng.random() * 3, "lr": 1e-4, "loss_scale": 65536.0,
                    "tokens_per_second": rng.random() * 1e4, "memory_mb": 1234.5, "epoch": step / 1000}  # fmt: skip
            handle.write(json.dumps(line) + "\n")
    return steps - 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1.0, metavar="GB")
    parser.add_argument("--times", type=int, default=2, help="rounds; the best of each counts")
    parser.add_argument("--folder", type=Path, help="where to put the file (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "run.jsonl"
        failed = write(path, options.size)
        gigabytes = path.stat().st_size / 1e9
        best: dict[str, float] = dict.fromkeys(_CHILDREN, math.inf)
        memory, processor = 0.0, math.inf
        for _ in range(options.times):
            for what in _CHILDREN:
                result = child(what, path, failed)
                best[what] = min(best[what], result["seconds"])
                if what == "logs":
                    memory = max(memory, result["megabytes"])
                    processor = min(processor, result["processor"])
    print(f"{gigabytes:.2f} GB, {failed + 1000} lines")
    for what, seconds in best.items():
        print(f"  {what:<12}{seconds:8.1f} s{seconds / gigabytes:8.1f} s/GB{seconds / best['read']:8.1f} x read"
              f"{seconds / best['json.loads']:8.2f} x json.loads")  # fmt: skip
    met = best["logs"] / gigabytes < SECONDS_PER_GB and memory < MEGABYTES
    print(f"  logs: {processor / gigabytes:.1f} s/GB of processor time (what counts on a busy machine)")
    print(f"  memory {memory:.0f} MB; {'the bars are met' if met else 'a bar is missed'} "
          f"(under {SECONDS_PER_GB:g} s/GB and {MEGABYTES:g} MB)")  # fmt: skip
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
