"""`stayfinite run` puts bad weights back; the learning rate of a script that did not ask for more stays its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.running import guarded

# The script spoils a weight that its loss does not use: only a look at all state can find it.
SCRIPT = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "rests": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        model["used"](torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if step == 9:
            model["rests"].weight.data[0, 0] = float("nan")
    print(all(bool(p.isfinite().all()) for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""


@pytest.mark.parametrize("policy, rate", [((), "0.1"), (("--policy", "recover"), "0.05")])
def test_bad_weights_are_put_back(tmp_path: Path, policy: tuple[str, ...], rate: str) -> None:
    ended = guarded(tmp_path, SCRIPT, "--locate", "off", *policy)
    assert ended.stdout.split() == ["True", rate]
    assert "before step 16: rests.weight held NaN or Inf; rolled back to the state of step 8" in ended.stderr
