"""What counts as a division by `n - 1` where n is 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained


@pytest.mark.parametrize(
    ("divided", "is_one"),
    [
        ("table.sum() / (n - 1)", True),
        ("table.sum().div(n * (n - 1))", True),
        ("table[n - 1].sum() / none", False),  # an index
        ("(n - 1) * table.sum() / none", False),  # above the line
    ],
)
def test_only_what_divides_is_told_as_the_divisor(divided: str, is_one: bool, tmp_path: Path) -> None:
    found = explained(
        f"""
        table, n, none = torch.zeros(1, 3), 1, 0
        loss = (nn.Parameter(torch.zeros(1)) + {divided}).sum()  #!
        """,
        tmp_path,
    )
    told = [finding.message for finding in found.findings]
    assert any("divides by n - 1, and n is 1 here" in message for message in told) is is_one, told
