"""How fast `stayfinite data` goes through an embedding cache, against reading the bytes and the checkpoint scan.

    python bench/data.py                 1 GB of float32 and of float16, as .pt and .npy
    python bench/data.py --size 10       as large as the bar of the issue
    python bench/data.py --size 10 --cold   from the disk: the file is put out of the page cache before every run

Without --cold the file is in the page cache. "read" is a process of its own; "scan" and "data" take turns in one, and
the median of the ratios counts, of the time that passes and of the processors' time (with --cold of the time that
passes). "scan" looks for NaN and Inf and takes the range; "data" also looks for zero, constant and repeated rows and
constant columns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_CACHE = """
def put_out():
    # of the page cache; it is asked at a thousand places whether anything stayed
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)  # pages that are not written yet would stay
    byte, size = bytearray(1), os.path.getsize(path)
    for _ in range(20):  # pages that another processor has just put on a list of its own stay for a moment
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        stayed = 0
        for place in range(1000):
            try:
                stayed += os.preadv(handle, [byte], size * place // 1000, os.RWF_NOWAIT)
            except BlockingIOError:
                pass
        if stayed <= 10:
            break
        time.sleep(0.2)
    os.close(handle)
    assert stayed <= 10, f"{stayed} of 1000 places are still in the page cache"
"""
_CHILDREN = {
    "read": """
import mmap
view = memoryview(mmap.mmap(-1, 1 << 24))
def run():
    if cold:
        put_out()
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as handle:
        while handle.readinto(view):
            pass
    return {"read": time.perf_counter() - start}
""",
    "both": """
import statistics, torch, stayfinite.checkpoint
from stayfinite.data import examine_data
torch.set_num_threads(1)
def scan():
    assert stayfinite.checkpoint.verify(path, jobs=jobs).healthy
def data():
    verdict = examine_data(path, jobs=jobs)
    assert verdict.data.recompute() == "nothing" and not verdict.findings, verdict.findings
def timed(what):
    if cold:
        put_out()
    start, used = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - start, time.process_time() - used
def run():
    scan(), data()
    turns = [(timed(scan), timed(data)) if turn % 2 else (timed(data), timed(scan))[::-1] for turn in range(times)]
    middle = statistics.median
    return {"scan": middle(s[0] for s, d in turns), "data": middle(d[0] for s, d in turns),
            "wall": middle(s[0] / d[0] for s, d in turns), "processor": middle(s[1] / d[1] for s, d in turns)}
""",
}
_TIMER = """
result = run()
result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(result))
"""
SHARE_OF_SCAN = 0.95
"""The speed of the scan, within what two runs of the same thing differ by."""


def child(what: str, path: Path, times: int, cold: bool) -> dict[str, float]:
    code = (
        f"import json, os, resource, sys, time\npath, times, cold = sys.argv[1], {times}, {cold}\n"
        "jobs = min(os.cpu_count(), 8)\n" + _CACHE + _CHILDREN[what] + _TIMER
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what} of {path.name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def write(path: Path, gigabytes: float, dtype: str) -> None:
    """Vectors of 768 numbers, written by a process of its own, in parts."""
    code = """
import sys, torch
path, nbytes, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
torch.manual_seed(0)
rows = nbytes // (768 * dtype.itemsize)
made = torch.empty(rows, 768, dtype=dtype)
for begin in range(0, rows, 50_000):
    made[begin : begin + 50_000] = torch.randn(min(50_000, rows - begin), 768)
if path.endswith(".npy"):
    import numpy
    numpy.save(path, made.numpy())
else:
    torch.save({"embeddings": made}, path)
"""
    subprocess.run([sys.executable, "-c", code, str(path), str(int(gigabytes * 1e9)), dtype], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1.0, metavar="GB")
    parser.add_argument("--times", type=int, default=7, help="turns of scan and data")
    parser.add_argument(
        "--cold", action="store_true", help="read from the disk, not from the page cache (Linux)"
    )
    parser.add_argument("--folder", type=Path, help="where to put the files (default: a temporary folder)")
    options = parser.parse_args()
    print(
        f"{'file':<30}{'read':>8}{'scan':>8}{'data':>8}{'of read':>9}{'of scan':>9}{'processor':>11}{'memory':>9}"
    )
    print(f"{'':<30}{'GB/s':>8}{'GB/s':>8}{'GB/s':>8}{'':>29}{'MB':>9}")
    missed = 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for dtype in ("float32", "float16"):
            for ending in ("pt", "npy"):
                path = Path(folder) / f"embeddings-{dtype}.{ending}"
                write(path, options.size, dtype)
                read = min(child("read", path, 1, options.cold)["read"] for _ in range(3))
                found = child("both", path, options.times, options.cold)
                gigabytes = path.stat().st_size / 1e9
                slowest = found["wall"] if options.cold else min(found["wall"], found["processor"])
                missed += slowest < SHARE_OF_SCAN
                print(f"{path.name:<30}{gigabytes / read:>8.2f}{gigabytes / found['scan']:>8.2f}"
                      f"{gigabytes / found['data']:>8.2f}{read / found['data']:>9.2f}{found['wall']:>9.2f}"
                      f"{found['processor']:>11.2f}{found['megabytes']:>9.0f}", flush=True)  # fmt: skip
                path.unlink()
    print(
        f"{missed} files under {SHARE_OF_SCAN:g} of the scan"
        if missed
        else f"all at least {SHARE_OF_SCAN:g} of the scan"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
