"""What a script warns of is shown as often under `stayfinite run` as by python alone, also while steps are traced."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.running import guarded

SCRIPT = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.randn(1, 3)).std()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("locate", [pytest.param("auto", marks=pytest.mark.long), "off"])
def test_a_warning_that_comes_at_every_bad_step_is_shown_once(tmp_path: Path, locate: str) -> None:
    ended = guarded(tmp_path, SCRIPT, "--locate", locate)
    assert ended.stderr.count("UserWarning: std(): degrees of freedom") == 1
    assert ended.stderr.count("train.py:9: UserWarning") == 1
