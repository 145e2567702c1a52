"""What a script under `run` shows: its own warnings and tracebacks; refusals in one counted line; one step number."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import preloaded

LOUD = """
import torch
from torch import nn
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 3)
sched.step()
for _ in range(3):
    net(torch.randn(2, 4)).sum().backward()
    opt.step()
opt.load_state_dict({"state": {}, "param_groups": []})
"""

REFUSED = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
data = torch.randn(80, 8, 4)
data[60:69, 0, 0] = float("nan")
for x in torch.utils.data.DataLoader(data, batch_size=None):
    loss = net(x).pow(2).mean() * 100
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""


def shown(folder: Path, source: str, *launcher: str) -> str:
    """What a script writes to stderr."""
    script = folder / "train.py"
    script.write_text(source, encoding="utf-8")
    done = preloaded.run(
        [sys.executable, *launcher, str(script)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.stderr


def test_warnings_and_tracebacks_are_those_of_the_script(tmp_path: Path) -> None:
    plain = shown(tmp_path, LOUD)
    assert "train.py:7: UserWarning" in plain and "ValueError: loaded state dict" in plain
    assert shown(tmp_path, LOUD, "-m", "stayfinite", "run") == plain


def test_refusals_are_one_counted_line_and_every_place_has_the_same_step_number(tmp_path: Path) -> None:
    """Back-offs of the scaler come first: they are steps like all others, and no incident."""
    output = tmp_path / "incidents.json"
    options = ["--format", "json", "--output", str(output), "--run-dir", "runs"]
    said = shown(tmp_path, REFUSED, "-m", "stayfinite", "run", *options)
    lines = [line for line in said.splitlines() if line.startswith("stayfinite: step")]
    assert len(lines) == 3, said  # the first at once, all of them at the end, and the second run
    first = re.match(r"stayfinite: step (\d+): the loss is nan", lines[0])
    assert first is not None and int(first[1]) == 60, said
    assert (
        lines[1].startswith("stayfinite: steps 60 to 68: the loss is nan")
        and "9 updates not applied" in lines[1]
    )
    assert lines[2].startswith("stayfinite: step 60 failed; running the script again")
    record = [json.loads(line) for line in (tmp_path / "runs" / "run.jsonl").read_text().splitlines()]
    steps = [line for line in record if "action" in line]
    assert [line["step"] for line in steps] == list(range(80))
    assert [line["step"] for line in steps if line["action"] == "skip"] == list(range(60, 69))
    backoffs = [line["step"] for line in steps if line["action"] == "backoff"]
    assert backoffs and max(backoffs) < 60
    assert all(
        line["loss"] < 1e4 for line in steps if line["action"] == "none"
    )  # the loss, not the scaled one
    (incident,) = json.loads(output.read_text())["incidents"]
    assert incident["step"] == 60 and incident["birth"] is not None
    assert [line["step"] for line in incident["history"]][-1] == 60
    assert "step 60: the loss is not finite" in said


PAIR = """
import torch
from torch import nn
torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 1)
first, second = torch.optim.Adam(encoder.parameters()), torch.optim.Adam(decoder.parameters())
for i in range(20):
    first.zero_grad(); second.zero_grad()
    loss = decoder(encoder(torch.randn(8, 4))).mean() * (float("nan") if i > 2 else 1.0)
    loss.backward()
    first.step()
    second.step()
    print(i, sum(p.grad.norm().item() for p in decoder.parameters()))
"""


def test_two_optimizers_outside_of_a_loader_end_at_the_tenth_failure(tmp_path: Path) -> None:
    said = shown(tmp_path, PAIR, "-m", "stayfinite", "run", "--no-prove", "--locate", "off")
    assert "stopped at 10 failures in a row at step 12: the loss is nan" in said, said
    assert "AttributeError" not in said and "step 13" not in said, said
