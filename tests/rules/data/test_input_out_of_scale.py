"""DAT011: what a model concatenates on its way is not its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

SKIP_CONNECTION = """
    a, b, c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
    d = nn.Conv2d(8, 4, 3, padding=1)
    with torch.no_grad():
        for layer in (a, b):
            layer.weight.mul_(100.0)
        d.weight.mul_(60.0)
    x = torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        h = a(x) + x
        h = torch.cat([h, b(h)], dim=1)
        out = d(h)  #!
    loss = out.float().square().mean()
"""
RAW_PIXELS = """
    layer = nn.Linear(16, 4)
    with torch.no_grad():
        layer.weight.mul_(3000.0)
    x = torch.stack([torch.full((16,), 255.0), torch.full((16,), 30.0)])
    with torch.autocast("cpu", dtype=torch.float16):
        out = layer(x)  #!
    loss = out.float().square().mean()
"""


def test_a_skip_connection_is_no_input(tmp_path: Path) -> None:
    found = explained(SKIP_CONNECTION, tmp_path)
    assert found.findings[0].cause == "FP16_OVERFLOW", str(found)
    assert found.findings[0].line in found.marked
    assert "DATA_SCALE" not in found.causes, str(found)


def test_stacked_samples_are(tmp_path: Path) -> None:
    found = explained(RAW_PIXELS, tmp_path)
    assert "DATA_SCALE" in found.causes, str(found)


def test_the_largest_float32_is_a_value_that_is_missing(tmp_path: Path) -> None:
    """A column scaled by its maximum, which is a fill value; an enormous positive number is no additive mask."""
    source = """
        table = torch.rand(16, 3)
        table[4, 1] = torch.finfo(torch.float32).max
        scale = table.amax(0)
        layer = nn.Linear(3, 3)
        loss = F.l1_loss(layer(table / scale).sigmoid() * scale, table / scale * scale, reduction="sum")  #!
    """
    found = explained(source, tmp_path)
    first = found.findings[0]
    assert (first.code, first.cause) == ("DAT011", "DATA_SCALE"), str(found)
    assert first.line in found.marked and "the largest number of float32" in first.message


@pytest.mark.parametrize(("reward", "found_so"), [("1e25", True), ("1.0", False)])
def test_a_reward_that_a_loop_discounts_is_found_where_it_was_given(
    reward: str, found_so: bool, tmp_path: Path
) -> None:
    """The returns are made of values that the model computed and of what the environment gave, many ops ago."""
    found = explained(
        f"""
        import numpy as np
        value, states = nn.Linear(2, 1), torch.ones(12, 2)
        given = np.ones(12, dtype=np.float32)
        given[7] = {reward}
        rewards = torch.from_numpy(given)
        with torch.no_grad():
            values = value(states).squeeze(1)
        returns, after = torch.zeros(12), torch.tensor(0.0)
        for i in reversed(range(12)):
            after = rewards[i] + 0.99 * after - values[i] * 0.5
            returns[i] = after + values[i]
        loss = (value(states).squeeze(1) - returns).pow(2).mean()  #!
        """,
        tmp_path,
    )
    assert ([f.code for f in found.findings][:1] == ["DAT011"]) is found_so, found
    if found_so:
        assert (found.findings[0].line, found.step.phase) == (found.marked[0], "forward")
        assert "inputs up to 1e+25 (given at snippet.py:8)" in found.findings[0].message
        assert "steps before" not in found.findings[0].message


def test_the_fill_value_of_float32_is_no_other_number(tmp_path: Path) -> None:
    told = []
    for size, dtype in (("3.4028235e38", "float32"), ("1e200", "float64")):
        found = explained(
            f"""
            x = torch.tensor([[1.0, {size}]] * 8, dtype=torch.{dtype})
            w = nn.Parameter(torch.ones(2, 1, dtype=torch.{dtype}))
            h = x @ w
            loss = (h * h).mean()  #!
            """,
            tmp_path,
        )
        assert found.findings[0].code == "DAT011", found
        told.append("largest number of float32" in found.findings[0].message)
    assert told == [True, False]
