"""What `stayfinite run` costs a healthy script: steps of a small GPT, plain and under run, in turns.

    python bench/run_overhead.py [--rounds 7] [--steps 64]

Each round starts the same script by itself and under run, in a random order, and compares the means of its steps
(processor time of the process, one thread): of the first 128, in which vitals are sampled whatever they cost, and of
the steps behind them. The table shows the medians of the rounds' ratios. The weights must be the same bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track

SCRIPT = """
import hashlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, {bench!r})
from overhead import Attention

torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(512, 128), *(Attention(128, 4) for _ in range(6)), nn.Linear(128, 512))
optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
seconds = []
for step in range(128 + {steps}):
    started = time.process_time()
    tokens = torch.randint(0, 512, (4, 129))
    loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    seconds.append(time.process_time() - started)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
print(statistics.mean(seconds[3:128]), statistics.mean(seconds[128:]), digest)
"""
WAYS = {
    "plain": [],
    "run": ["-m", "stayfinite", "run"],
    "watch": ["-m", "stayfinite", "run", "--policy", "watch"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=64, help="steps behind the first 128")
    options = parser.parse_args()
    console = Console(highlight=False)
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    later: dict[str, list[float]] = {way: [] for way in WAYS}
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT.format(bench=str(Path(__file__).resolve().parent), steps=options.steps))
        for _ in track(range(options.rounds), "rounds", console=console, transient=True):
            seconds = {}
            for way in random.sample(list(WAYS), len(WAYS)):
                done = subprocess.run(
                    [sys.executable, *WAYS[way], str(script)],
                    cwd=folder,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                *means, digest = done.stdout.split()
                seconds[way] = [float(mean) for mean in means]
                digests.add(digest)
            for way in WAYS:
                first[way].append(seconds[way][0] / seconds["plain"][0])
                later[way].append(seconds[way][1] / seconds["plain"][1])
    for way, label in (("run", "stayfinite run"), ("watch", "stayfinite run --policy watch")):
        console.print(
            f"{label:30} {statistics.median(later[way]):.3f} of a plain step (bar 1.05); "
            f"{statistics.median(first[way]):.3f} in the first 128 steps"
        )
    console.print("weights bit-identical" if len(digests) == 1 else "WEIGHTS DIFFER")


if __name__ == "__main__":
    main()
