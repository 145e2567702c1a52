"""Edits of a source: every other character stays, a module is never called twice, and a patch applies exactly once."""

import ast
from pathlib import Path

import pytest

from stayfinite.prove.patching import DoesNotApply, apply
from stayfinite.remedies.remedy import all_remedies
from stayfinite.remedies.source import (
    Edit,
    SourceSite,
    argument,
    edited,
    is_pure,
    unified_diff,
    with_argument,
)


def expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


@pytest.mark.parametrize(
    ("code", "index", "new", "wanted"),
    [
        ("torch.log( p+1 )", 0, "q", "torch.log( q )"),
        ("(a - b).log()", 0, "a - c", "(a - c).log()"),
        ("x / (b.max() - b.min())", 1, "b.clamp_min(1)", "x / b.clamp_min(1)"),
        ("x / (b)", 1, "a + b", "x / (a + b)"),
        ("é / b  # ü", 1, "c", "é / c"),
    ],
)
def test_one_operand_is_rewritten(code: str, index: int, new: str, wanted: str) -> None:
    site = SourceSite("f.py", "import torch\n" + code, 2)
    outer = next(node for node in site.here() if argument(node, site, index) is not None)
    assert with_argument(outer, site, index, new) == wanted


def test_overlapping_edits_keep_the_outer_one() -> None:
    assert edited("a(b(c))", [Edit(2, 6, "x"), Edit(0, 7, "y")]) == "y"
    assert edited("a + b", [Edit(0, 1, "x"), Edit(4, 5, "y")], lambda text: f"f({text})") == "f(x) + f(y)"


@pytest.mark.parametrize(("code", "pure"), [("x.sum(1)", True), ("net(x)", False), ("torch.rand(3)", False)])
def test_what_may_be_computed_twice(code: str, pure: bool) -> None:
    assert is_pure(expression(code)) is pure


def test_names_are_followed_only_where_it_is_certain() -> None:
    text = "def f(a, c):\n    p = a.exp()\n    if c:\n        q = a\n    else:\n        q = p\n"
    text += "    return p.log() + q.log()\n"
    site = SourceSite("f.py", text, 7)
    node = site.calls("log")[0]
    assert site.code(site.assigned("p", node) or node) == "a.exp()"
    assert site.assigned("q", node) is None
    again = SourceSite("f.py", "p = 1\np = p.exp()\ny = p.log()\n", 3)
    assert again.assigned("p", again.calls("log")[0]) is None


def test_a_patch_applies_only_to_the_lines_it_was_made_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    before = "a = 1\nb = log(x)\nc = 3"
    script.write_text(before)
    patch = unified_diff(before, before.replace("log(x)", "log(x + 1)"), str(script))
    (one,) = apply(patch)
    assert one.after == "a = 1\nb = log(x + 1)\nc = 3"
    one.write()
    assert script.read_text() == one.after and (tmp_path / "train.py.orig").read_text() == before
    with pytest.raises(DoesNotApply, match="no longer has the lines"):
        apply(patch)
    one.take_back()
    assert script.read_text() == before and not (tmp_path / "train.py.orig").exists()


def test_line_endings_stay(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes("a = 1\r\nb = 2  # ä\r\n".encode())
    (one,) = apply(unified_diff("a = 1\nb = 2  # ä\n", "a = 1\nb = 3  # ä\n", str(script)))
    one.write()
    assert script.read_bytes() == "a = 1\r\nb = 3  # ä\r\n".encode()


def test_every_remedy_tells_what_to_do() -> None:
    names = [remedy.name for remedy in all_remedies()]
    assert len(names) == len(set(names)) >= 25
    for remedy in all_remedies():
        assert remedy.sentence and remedy.kinds and remedy.__doc__


@pytest.mark.parametrize(
    ("head", "line", "first"),
    [
        ("from torch import nn", "nn.functional.softmax(s, dim=1)", "s"),
        ("import torch.nn as N", "N.functional.softmax(s, dim=1)", "s"),
        ("from torch.nn import functional as fn", "fn.softmax(s, dim=1)", "s"),
        ("import torch", "torch.nn.functional.softmax(s, dim=1)", "s"),
        ("import torch", "s.softmax(dim=1)", "s"),
        ("import torch", "torch.exp(s).softmax(dim=1)", "torch.exp(s)"),
        ("from tables import weights", "weights.softmax(1)", "weights"),
        ("import tables", "tables.weights.softmax(1)", "tables.weights"),
    ],
)
def test_what_is_imported_from_torch_is_no_tensor(head: str, line: str, first: str) -> None:
    site = SourceSite("x.py", f"{head}\nw = {line}\n", 2)
    inside = argument(site.calls("softmax")[0], site)
    assert inside is not None and site.code(inside) == first
