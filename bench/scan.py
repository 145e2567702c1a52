"""How fast `stayfinite scan` is against reading the file and against load-then-isnan, all in one run.

    python bench/scan.py                 1 GB and 4 GB, float32, bfloat16 and float16, torch and safetensors
    python bench/scan.py --sizes 0.5     smaller files
    python bench/scan.py --small 200000  only this: a checkpoint of so many tensors of eight numbers

Each measurement is a process of its own. The files are in the page cache before anything is timed. "read" is one
`readinto` of the whole file into a page-aligned buffer that exists and has been touched: the fastest way Python has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_CHILDREN = {
    "read": """
import mmap, time
path, times = sys.argv[1], int(sys.argv[2])
size = os.path.getsize(path)
buffer = mmap.mmap(-1, size)
view = memoryview(buffer)
def run():
    with open(path, "rb", buffering=0) as handle:
        done = 0
        while done < size:
            done += handle.readinto(view[done:])
run()
""",
    "scan": """
import torch, resource
import stayfinite.checkpoint
path, times = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def run():
    verdict = stayfinite.checkpoint.verify(path, jobs=min(os.cpu_count(), 8))
    assert verdict.healthy and verdict.checkpoint.tensors, verdict.findings
""",
    "isnan": """
import torch
path, times = sys.argv[1], int(sys.argv[2])
if path.endswith(".safetensors"):
    from safetensors.torch import load_file as load
else:
    load = torch.load
def run():
    assert not any(tensor.isnan().any() for tensor in load(path).values())
""",
}
_TIMER = """
import time
best = 1e9
for _ in range(times):
    start = time.perf_counter()
    run()
    best = min(best, time.perf_counter() - start)
result = {"seconds": best}
if "before" in globals():
    result["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps(result))
"""

BARS = {"float32": 0.7, "bfloat16": 0.7, "float16": 0.5}
TIMES_ONE_LINER = 8.0
MEGABYTES = 400.0
SMALL_SECONDS = 20.0


def child(what: str, path: Path, times: int) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    code = "import json, os, sys\n" + _CHILDREN[what] + _TIMER
    done = subprocess.run([sys.executable, "-c", code, str(path), str(times)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what} of {path.name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def write(path: Path, gigabytes: float, dtype: str) -> None:
    """A checkpoint of equal matrices of about 67 MB; written by a process of its own, to leave no memory behind."""
    code = """
import sys, torch
path, nbytes, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
rows = (64 << 20) // dtype.itemsize // 4096
matrix = (torch.randn(rows, 4096) * 0.02).to(dtype)
count = max(1, nbytes // (matrix.numel() * matrix.element_size()))
state = {f"layers.{number}.weight": matrix.clone() for number in range(count)}
if path.endswith(".safetensors"):
    from safetensors.torch import save_file
    save_file(state, path)
else:
    torch.save(state, path)
"""
    subprocess.run([sys.executable, "-c", code, str(path), str(int(gigabytes * 1e9)), dtype], check=True)


def measure_small(count: int, folder: str) -> bool:
    """Seconds for a checkpoint of very many tiny tensors, beside what torch.load takes for it."""
    path = Path(folder) / "small.pt"
    code = (
        "import sys, torch\n"
        "torch.save({f'layers.{i}.w': torch.randn(8) for i in range(int(sys.argv[2]))}, sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(path), str(count)], check=True)
    seconds = {what: child(what, path, 1)["seconds"] for what in ("scan", "isnan")}
    met = seconds["scan"] < SMALL_SECONDS
    print(f"{count} tensors: scan {seconds['scan']:.1f} s, torch.load and isnan {seconds['isnan']:.1f} s; "
          f"{'met' if met else f'over {SMALL_SECONDS:g} s'}", flush=True)  # fmt: skip
    path.unlink()
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 4.0], metavar="GB")
    parser.add_argument("--dtypes", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--formats", nargs="+", default=["pt", "safetensors"], choices=["pt", "safetensors"])
    parser.add_argument("--times", type=int, default=3, help="rounds; the best of each counts")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: a temporary folder)")
    parser.add_argument("--small", type=int, metavar="N", help="only: a checkpoint of N tiny tensors")
    options = parser.parse_args()
    if options.small:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            return 0 if measure_small(options.small, folder) else 1
    head = f"{'file':<28}{'read':>9}{'scan':>9}{'isnan':>9}{'of read':>9}{'x isnan':>9}{'memory':>9}  bars"
    print(
        head + "\n" + "-" * len(head) + "\n" + f"{'':<28}{'GB/s':>9}{'GB/s':>9}{'GB/s':>9}{'':>18}{'MB':>9}",
        flush=True,
    )
    missed = 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for size in options.sizes:
            for dtype in options.dtypes:
                for ending in options.formats:
                    path = Path(folder) / f"{size:g}gb-{dtype}.{ending}"
                    write(path, size, dtype)
                    missed += not measure(path, dtype, options.times)
                    path.unlink()
    print("every bar is met" if not missed else f"{missed} rows miss a bar")
    return 1 if missed else 0


def measure(path: Path, dtype: str, times: int) -> bool:
    """One row of the table; True where all bars are met."""
    nbytes = path.stat().st_size
    seconds = {"read": 1e9, "scan": 1e9, "isnan": 1e9}
    memory = 0.0
    for _ in range(times):  # in turn, so that whatever else the machine does falls on all of them
        for what in seconds:
            result = child(what, path, 1 if what == "isnan" else 5)
            seconds[what] = min(seconds[what], result["seconds"])
            memory = max(memory, result.get("megabytes", 0.0))
    speed = {what: nbytes / best / 1e9 for what, best in seconds.items()}
    share, factor = speed["scan"] / speed["read"], speed["scan"] / speed["isnan"]
    failed = []
    if share < BARS[dtype]:
        failed.append(f"under {BARS[dtype]} of read")
    if factor < TIMES_ONE_LINER:
        failed.append(f"under {TIMES_ONE_LINER:g} x isnan")
    if memory > MEGABYTES:
        failed.append(f"over {MEGABYTES:g} MB")
    print(
        f"{path.name:<28}{speed['read']:>9.2f}{speed['scan']:>9.2f}{speed['isnan']:>9.2f}{share:>9.2f}{factor:>9.1f}"
        f"{memory:>9.0f}  {', '.join(failed) or 'met'}",
        flush=True,
    )
    return not failed


if __name__ == "__main__":
    sys.exit(main())
