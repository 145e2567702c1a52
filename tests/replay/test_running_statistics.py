"""A batch norm that trains keeps its running statistics by the side: what they hold is in none of its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

# The variance of what comes in is beyond float32, so running_var is Inf after it; what comes out is finite.
_SIDE = """
    norm = nn.BatchNorm2d(2)
    norm(torch.randn(4, 2, 3, 3) * 1e21)
    x = torch.randn(4, 2, 3, 3) * nn.Parameter(torch.tensor(3e38)) * 10.0  #!
    loss = norm(x).sum()
"""
_EVALUATES = """
    norm = nn.BatchNorm2d(2).eval()
    norm.running_mean.fill_(1e30)
    norm.running_mean.mul_(1e30)  #!
    loss = norm(torch.randn(4, 2, 3, 3)).sum()
"""


@pytest.mark.parametrize("source", [_SIDE, _EVALUATES], ids=["trains", "evaluates"])
def test_where_the_loss_became_bad(source: str, tmp_path: Path) -> None:
    found = explained(source, tmp_path)
    assert found.step is not None and found.step.birth is not None, str(found)
    assert found.step.birth.birth.line in found.marked, str(found)
