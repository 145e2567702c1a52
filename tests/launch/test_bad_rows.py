"""One bad row of the data, as a script under `run` meets it: which tensor of the batch, which of its samples."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import preloaded

HEAD = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
table = np.random.default_rng(0).random((48, 4, 6), dtype=np.float32)
table[21, 3, 2] = np.nan
"""
TRAIN = """
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for batch in loader:
    {take}
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
ROWS = """
class Rows(Dataset):
    def __len__(self):
        return len(table)

    def __getitem__(self, i):
        return {made}

loader = DataLoader(Rows(), batch_size={size}{more})
"""


def _script(made: str, take: str, size: int = 8, more: str = "") -> str:
    return HEAD + ROWS.format(made=made, size=size, more=more) + TRAIN.format(take=take)


SCRIPTS = {
    "rows of a sample are no samples": (
        _script("torch.from_numpy(table[i])", "x = batch", size=4),
        "batch holds 1 NaN and 0 Inf among 96 values in samples [1]",
    ),
    "a dictionary": (
        _script("{'values': torch.from_numpy(table[i]), 'label': i}", "x = batch['values']"),
        "batch['values'] holds 1 NaN and 0 Inf among 192 values in samples [5]",
    ),
    "put in its place": (
        _script("(i, table[i].astype('float64'))", "batch = [part.float() for part in batch]; x = batch[1]"),
        "batch[1] holds 1 NaN and 0 Inf among 192 values in samples [5]",
    ),
    "made of rows": (
        _script(
            "table[i].tolist()",
            "x = batch['x']",
            more=", collate_fn=lambda rows: {'x': torch.FloatTensor(rows)}",
        ),
        "batch['x'] holds 1 NaN and 0 Inf among 192 values in samples [5]",
    ),
}


STOPPED = """
import torch
from torch import nn
net = nn.Linear(4, 1)
opts = [torch.optim.SGD([p], 0.1) for p in net.parameters()]
data = torch.full((40, 8, 4), float("nan"))
for x in torch.utils.data.DataLoader(data, batch_size=None):
    for opt in opts:
        net.zero_grad()
        net(x).pow(2).mean().backward()
        opt.step()
"""

RAISED = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.01)
data = torch.randn(12, 8, 4)
data[5, 2] = {row}
for x in torch.utils.data.DataLoader(data, batch_size=None):
    hidden = net(x)
    error = (hidden - x.norm(dim=1, keepdim=True)).pow(2).mean()
    scaled = hidden / x.norm(dim=1, keepdim=True)
    factor = torch.linalg.cholesky(scaled.T @ scaled + torch.eye(3))
    loss = error + factor.diagonal().log().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def _run(source: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """What `run` says of this script, and its incidents."""
    script, output = folder / "train.py", folder / "incidents.json"
    script.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "stayfinite", "run", "--format", "json", "--output", str(output)]
    done = preloaded.run([*command, str(script)], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.stderr, json.loads(output.read_text())["incidents"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_holds_it(name: str, tmp_path: Path) -> None:
    source, told = SCRIPTS[name]
    said, incidents = _run(source, tmp_path)
    (incident,) = incidents
    finding = incident["findings"][0]
    assert (finding["code"], finding["message"]) == ("DAT001", told), said
    assert not incident["birth"]["samples"]  # what came in was one sample, or was on its way to be a batch


def test_two_optimizers_end_a_run_once(tmp_path: Path) -> None:
    said, _ = _run(STOPPED, tmp_path)
    assert said.count("stayfinite: stopped at") == 1, said


@pytest.mark.parametrize(("row", "code", "line"), [("0.0", "NUM014", 12), ("1e30", "DAT011", None)])
def test_an_error_of_a_decomposition_leads_to_the_row(
    row: str, code: str, line: int | None, tmp_path: Path
) -> None:
    """And a term that was finished before the error is no incident of its own."""
    said, incidents = _run(RAISED.format(row=row), tmp_path)
    (incident,) = incidents
    assert incident["step"] == 5 and incident["findings"][0]["code"] == code, said
    assert line is None or incident["birth"]["line"] == line


LABELS = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
rows, labels = torch.randn(64, 4), torch.randn(64, 1)
labels[40] = 1e25
for x, y in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, labels), batch_size=8):
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_label_out_of_scale_is_told_from_an_input(tmp_path: Path) -> None:
    said, incidents = _run(LABELS, tmp_path)
    message = incidents[0]["findings"][0]["message"]
    assert message.startswith("mse_loss overflowed on inputs up to 1e+25 (the target), "), said
