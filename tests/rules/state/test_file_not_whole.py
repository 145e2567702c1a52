"""STA037 on real files, cut at many places, and on those that only look as if they were damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rules.watched import incidents_of
from stayfinite.findings import Finding

LOAD = """
try: state = torch.load({path!r}, weights_only={safe})
except Exception as error: print(type(error).__name__)
"""


def checkpoint(path: Path, *, old_format: bool) -> bytes:
    net = torch.nn.Linear(40, 40)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(40)).sum().backward()
    optimizer.step()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, path, _use_new_zipfile_serialization=not old_format)
    return path.read_bytes()


def findings(source: str, folder: Path) -> list[Finding]:
    return [finding for incident in incidents_of(source, folder) for finding in incident.findings]


@pytest.mark.parametrize("safe", [True, False], ids=["weights only", "any pickle"])
@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "old format"])
@pytest.mark.parametrize("part", [0.0, 0.002, 0.05, 0.5, 0.99])
def test_a_file_that_is_cut_off(part: float, old_format: bool, safe: bool, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    data = checkpoint(path, old_format=old_format)
    path.write_bytes(data[: int(part * len(data))])
    found = findings(LOAD.format(path=str(path), safe=safe), tmp_path)
    assert [finding.code for finding in found] == ["STA037"]
    assert found[0].evidence["file"] == str(path)


def test_a_script_that_ends_by_it(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(checkpoint(path, old_format=False)[:-40])
    source = f"x = torch.ones(3)\nstate = torch.load({str(path)!r})"
    assert [finding.code for finding in findings(source, tmp_path)] == ["STA037"]


def test_an_open_file_is_judged_too(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(checkpoint(path, old_format=False)[:3000])
    source = f"import io\nwith open({str(path)!r}, 'rb') as file: torch.load(io.BytesIO(file.read()))"
    assert [finding.code for finding in findings(source, tmp_path)] == ["STA037"]


def test_a_fallback_that_was_loaded_makes_it_good(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.pt", tmp_path / "broken.pt"
    data = checkpoint(whole, old_format=False)
    broken.write_bytes(data[:500])
    first = LOAD.format(path=str(broken), safe=True)
    assert findings(first + LOAD.format(path=str(whole), safe=True), tmp_path) == []
    assert findings(LOAD.format(path=str(whole), safe=True) + first, tmp_path) != []


def test_other_reasons_why_a_load_fails(tmp_path: Path) -> None:
    refused = tmp_path / "refused.pt"
    torch.save({"path": tmp_path}, refused)
    assert findings(LOAD.format(path=str(refused), safe=True), tmp_path) == []
    assert findings(LOAD.format(path=str(tmp_path / "missing.pt"), safe=True), tmp_path) == []
    assert findings(LOAD.format(path=str(tmp_path), safe=True), tmp_path) == []
