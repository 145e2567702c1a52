"""A norm beyond float32 of finite gradients: refused, and called what it is."""

import sys
from pathlib import Path

import pytest
import torch

import preloaded
from stayfinite import Guard

SCRIPT = """
import torch
torch.manual_seed(0)
w = torch.randn(64, requires_grad=True)
opt = torch.optim.SGD([w], lr=1e-30)
for step in range(6):
    loss = (w * (1e20 if step == 3 else 1.0)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("large", [1.0, 1e20], ids=["batch is ordinary", "batch is enormous"])
def test_finite_gradients_with_an_infinite_norm(tmp_path: Path, large: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=1e-30), run_dir=tmp_path)
    refused = []
    for step in range(4):
        batch = torch.randn(4, 8) * (large if step == 2 else 1.0)
        inside = 1e20 / large if step == 2 else 1.0
        result = guard.step(lambda x, s: (model(x) * s).sum(), batch, inside)
        assert result.applied == (step != 2)
        refused += [result.incident] if result.incident is not None else []
    guard.close()
    (incident,) = refused
    findings = incident.findings
    assert [f.code for f in findings] == ["RUN020"]
    assert findings[0].cause == ("DATA_SCALE" if large > 1 else "UNKNOWN")
    assert findings[0].evidence["parameter"] == "weight"
    assert 1e19 < findings[0].evidence["largest_gradient"] < float("inf")


@pytest.mark.long
def test_a_script_is_not_told_of_faulty_hardware(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stayfinite", "run", "--no-prove", "train.py"]
    said = preloaded.run(command, cwd=tmp_path, timeout=300).stderr
    assert "RUN020" in said and "RUN013" not in said, said
    assert "the gradient norm is not finite" in said and "a gradient is not finite" not in said
