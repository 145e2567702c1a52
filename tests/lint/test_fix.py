"""A fix is exact: the same function, the same formatting, and never over a file that somebody changed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stayfinite.lint import fix
from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

HEAD = "import torch\nimport torch.nn.functional as F\n\n\ndef f(x):\n    return "
FORMS = [
    ("torch.log(torch.softmax(x, dim=-1))", "torch.log_softmax(x, dim=-1)"),
    ("F.softmax(x, dim=1).log()", "F.log_softmax(x, dim=1)"),
    ("(x * 2).softmax(-1).log()", "(x * 2).log_softmax(-1)"),
    ("torch.log(torch.sigmoid(x))", "torch.nn.functional.logsigmoid(x)"),
    ("torch.log(1 + torch.exp(x))", "torch.nn.functional.softplus(x)"),
    ("torch.log1p(torch.exp(x))", "torch.nn.functional.softplus(x)"),
    ("torch.log(torch.sum(torch.exp(x), dim=1))", "torch.logsumexp(x, dim=1)"),
    ("torch.log(x.exp().sum(-1))", "torch.logsumexp(x, -1)"),
    ("x.var(0).sqrt()", "x.std(0)"),
]


def fixed(path: Path) -> str:
    (change,) = fix.changes(lint([str(path)], Settings()).findings)
    assert fix.write(change) is None
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("old", "new"), FORMS)
def test_the_stable_form_is_the_same_function(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD + old + "  # why\n", encoding="utf-8")
    assert fixed(path) == HEAD + new + "  # why\n"
    x = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scope = {"torch": torch, "F": torch.nn.functional, "x": x}
    torch.testing.assert_close(eval(old, scope), eval(new, scope))


def test_a_masked_count_is_clamped(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import torch\ndef f(x, y):\n    m = y > 0\n    return (x * m).sum() / m.sum()\n", encoding="utf-8"
    )
    assert "m.sum().clamp(min=1)" in fixed(path)


def test_line_ends_other_lines_and_letters_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    raw = "import torch\r\n# ünïcode\r\ndef f(x):\r\n    é = x; y = torch.log(torch.softmax(x, -1))\r\n    return y\r\n"
    path.write_bytes(raw.encode())
    fixed(path)
    assert (
        path.read_bytes()
        == raw.replace("torch.log(torch.softmax(x, -1))", "torch.log_softmax(x, -1)").encode()
    )


def test_a_yaml_number_gets_its_dot(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-5   # rate\nbatch_size: 4\nwd: 5E3\n", encoding="utf-8")
    assert fixed(path) == "lr: 1.0e-5   # rate\nbatch_size: 4\nwd: 5.0e+3\n"


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD + FORMS[0][0] + "\n", encoding="utf-8")
    (change,) = fix.changes(lint([str(path)], Settings()).findings)
    path.write_text("# mine\n", encoding="utf-8")
    said = fix.write(change)
    assert said is not None and "changed meanwhile" in said
    assert path.read_text(encoding="utf-8") == "# mine\n"


def test_a_link_and_its_mode_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text(HEAD + FORMS[0][0] + "\n", encoding="utf-8")
    real.chmod(0o755)
    link.symlink_to(real)
    fixed(link)
    assert link.is_symlink() and "log_softmax" in real.read_text(encoding="utf-8")
    assert real.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "real.py"]
