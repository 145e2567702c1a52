"""A version of torch without a name that is listened to: one capability is off, it is said, and the run goes on."""

import json
import sys
from pathlib import Path

import preloaded

TRAINING = """
import sys
import torch
from stayfinite import Guard

del torch.amp.grad_scaler.GradScaler.get_scale
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=sys.argv[1])
for _ in range(3):
    result = guard.step(lambda: model(torch.randn(8, 4)).pow(2).mean())
    assert result.applied
guard.close()
"""


def test_it_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    done = preloaded.run([sys.executable, "-c", TRAINING, str(tmp_path / "run")], timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()]
    said = [line["what"] for line in lines if line.get("event") == "warning"]
    assert len(said) == 1 and "get_scale is not in the installed version" in said[0], said
    assert done.stderr.count("get_scale is not in the installed version") == 1, done.stderr
    assert sum("loss" in line for line in lines) == 3
