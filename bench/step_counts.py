"""What a healthy step costs, counted: op calls and transfers to the host, of a toy MLP plain, under run and guarded.

    python bench/step_counts.py

Counts, not seconds: they are the same on every machine. The look at all state every 100 steps is not among them; the
early copies (at steps 1, 2, 4, 8 ...) and the samples of vitals are, so the most is that of such a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import fresh_python

SCRIPT = """
import json
import sys
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ops = transfers = 0

class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        global ops, transfers
        ops += 1
        transfers += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))

class Calls(TorchFunctionMode):  # tolist and numpy read the memory of the host without an op
    def __torch_function__(self, func, types, args=(), kwargs=None):
        global transfers
        transfers += getattr(func, "__name__", "") in ("tolist", "numpy", "cpu")
        return func(*args, **(kwargs or {}))

def train(style):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in style)
    steps = 99 if "long" in style else 30  # the look at all state every 100 steps is not reached
    data = torch.randn(8 * steps, 16)
    batches = torch.utils.data.DataLoader(data, batch_size=8) if "loader" in style else data.split(8)
    if "guard" in style:
        from stayfinite import Guard
        batches = Guard(net, opt, scaler=scaler, run_dir="run", quiet=True).watch(batches)
    counts = []
    with Calls(), Ops():
        for x in batches:
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            if "checks" in style:
                torch.isfinite(loss)
            scaler.scale(loss).backward()
            if "clip" in style:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            counts.append((ops, transfers))
    return [[b - a for a, b in zip(one, two)] for one, two in zip(counts, counts[1:])]

print(json.dumps({style: train(style) for style in sys.argv[1:]}))
"""
STYLES = ["loader, clip", "plain, checks", "loader, scaler, clip"]

Counts = dict[str, list[tuple[int, int]]]


def counted(
    folder: Path, styles: list[str], *launcher: str, run: fresh_python.Run = fresh_python.run
) -> Counts:
    """(op calls, transfers) of every step but the first, by style of training."""
    script = folder / "toy.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, *launcher, str(script), *styles]
    done = run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found: Counts = json.loads(done.stdout)
    return found


def added(with_it: list[tuple[int, int]], alone: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(op calls, transfers) that were added, step by step."""
    return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(with_it, alone, strict=True)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        styles = [f"{style}, long" for style in STYLES]  # most of the first thirty steps are sampled
        guarded = {style: f"{style}, guard" for style in styles}
        plain = counted(folder, [*styles, *guarded.values()])
        run = counted(folder, styles, "-m", "stayfinite", "run")
    print("added a step: median and most op calls, most transfers")
    for style in styles:
        for name, counts in (("run", run[style]), ("guard.watch", plain[guarded[style]])):
            more = added(counts, plain[style])
            ops, transfers = [one[0] for one in more], [one[1] for one in more]
            print(f"{style:24} {name:12} {statistics.median(ops):4.0f} {max(ops):4d} {max(transfers):4d}")


if __name__ == "__main__":
    main()
