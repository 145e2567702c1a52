"""A long guarded run: memory, the size of its record, and the time a step takes, early and late.

    python bench/long_run.py [STEPS]      100,000 without

A small net with vitals on, as they are by default; the run folder stays and its name is printed, for bench/page.py.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from stayfinite import Guard


def resident_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(4)]
    net = nn.Sequential(*blocks, nn.Linear(16, 1))
    folder = Path(tempfile.mkdtemp()) / "run"
    guard = Guard(net, torch.optim.AdamW(net.parameters(), 1e-4), clip_norm=1.0, run_dir=folder, quiet=True)
    record, began = folder / "run.jsonl", time.perf_counter()
    print(f"{'steps':>9} {'memory MB':>10} {'bytes a step':>12} {'of them vitals':>14} {'ms a step':>10}")
    for part in range(10):
        for _ in range(steps // 10):
            x = torch.randn(8, 16)
            guard.step(lambda x=x: (net(x) - x.sum(1, keepdim=True)).pow(2).mean())
        took, began = time.perf_counter() - began, time.perf_counter()
        done = (part + 1) * (steps // 10)
        with record.open("rb") as lines:
            vitals = sum(len(line) for line in lines if line.startswith(b'{"event":"vitals"'))
        print(
            f"{done:9,} {resident_mb():10.1f} {record.stat().st_size / done:12.1f} {vitals / done:14.1f} "
            f"{took / (steps // 10) * 1e3:10.2f}",
            flush=True,
        )
    guard.close()
    print(folder)


if __name__ == "__main__":
    main(int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else 100_000)
