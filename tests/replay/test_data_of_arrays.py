"""torch.tensor of an array or a long list copies data; of a few numbers it is what somebody wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

TAKEN = {
    "an array": ("np.array([1.0, float('nan'), 2.0])", "outside"),
    "a long list": ("[1.0] * 30 + [float('nan')]", "outside"),
    "a deque": ("collections.deque([1.0] * 30 + [float('nan')])", "outside"),
    "a literal": ("[1.0, float('nan')]", "deliberate"),
    "one number": ("float('nan')", "deliberate"),
}


@pytest.mark.parametrize("values", ["[1.0, float('nan')]", "[float('nan')]"])
def test_an_array_is_never_a_literal(values: str, tmp_path: Path) -> None:
    """Rewards, labels, a table: from_numpy is given what somebody else computed; nobody wrote it down."""
    found = explained(
        f"""
        import numpy as np
        w = nn.Parameter(torch.ones(1))
        target = torch.from_numpy(np.stack({values})).to(torch.float32)  #!
        loss = (w - target).pow(2).mean()
        """,
        tmp_path,
    )
    first = found.findings[0]
    assert (first.code, first.line) == ("DAT001", found.marked[0]), found
    assert "plain numbers" not in first.message, found


@pytest.mark.parametrize("name", TAKEN)
def test_where_a_nan_came_from(name: str, tmp_path: Path) -> None:
    given, transition = TAKEN[name]
    found = explained(
        f"""
        import collections
        import numpy as np
        w = nn.Parameter(torch.ones(1))
        loss = (w - torch.tensor({given})).pow(2).mean()  #!
        """,
        tmp_path,
    )
    assert found.step is not None and found.step.birth is not None, found
    assert found.step.birth.transition == transition
    told = found.findings[0].message
    assert found.causes[0] == "DATA_NONFINITE" and ("plain numbers" in told) == (
        transition == "deliberate"
    ), found


def test_a_mask_of_an_array_is_meant(tmp_path: Path) -> None:
    found = explained(
        """
        import numpy as np
        w = nn.Parameter(torch.zeros(3))
        mask = torch.tensor(np.array([0.0, -np.inf, 0.0], dtype=np.float32))
        loss = -(torch.softmax(w + mask, 0) * 0 / (w.sum() * 0)).sum()  #!
        """,
        tmp_path,
    )
    assert found.step is not None and found.step.birth is not None
    assert found.step.birth.op == "div" and "DATA_NONFINITE" not in found.causes, found
