"""Healthy twins: a failing script with harmless numbers in it, and how far a patch moves what it computes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HEALTHY: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "adam-eps-underflow-fp16": (("* 0.01", "* 4"), ("nn.ReLU()", "nn.Tanh()"), ("1e-3,", "1e-3, eps=1e-3,")),
    "allreduce-fp16-sum-overflow": (("* 30 + 400", "* 3 + 4"),),
    "bce-sigmoid-saturates-fp16": (("16) * 20", "16) * 1"),),
    "clip-grad-norm-inf-to-nan": (("zeros(3)", "ones(3)"),),
    "ctc-repeated-labels": (("3, 3, 4", "3, 5, 4"),),
    "ema-sticky-nan": (("1e25", "1."),),
    "gat-softmax-no-max-subtraction": (("* 60; e[0] = 120.", "; e[0] = 1.2"),),
    "gaussian-nll-variance-collapse": (("600", "12"),),
    "inverse-freq-missing-class": (("(0, 4,", "(0, 5,"),),
    "mask-finfo-min-summed": (("[0, 0, 1, 1]", "[1, 1, 1, 1]"),),
    "masked-mean-zero-tokens": (("torch.full((1, 5), -100)", "torch.tensor([[-100, -100, 3, 4, 5]])"),),
    "mdn-likelihood-underflow": (("40 * x", "2 * x"),),
    "mha-key-padding-all-true": (("[True] * 5", "[False] + [True] * 4"),),
    "minmax-constant-image": (("torch.zeros(3, 8, 8)", "torch.rand(3, 8, 8)"),),
    "mish-softplus-overflow": (("95.0", "9.5"),),
    "multinomial-nan-secondary": (("randn(1", "randn(2"),),
    "muon-cast-before-normalise": (("65536.", "1."),),
    "nan-guard-uses-greater-than": (("0. if", "1. if"),),
    "nansum-zero-times-nan": (('float("nan"), float("nan")', "15., 20."),),
    "normalize-zero-vector-1e12": (("2, 0, 0", "2, 3, 4"),),
    "orpo-log1p-minus-exp": (("60.0", "2.0"),),
    "pow-fractional-zero": (("* 200", "* 1"),),
    "sdpa-nan-in-masked-value": (("2.0, 0.0]); feat", "2.0, 3.0]); feat"),),
    "std-constant-feature": (("[3].zero_()", "[3].mul_(1)"),),
    "std-of-one-sample": (("randn(5", "randn(6"), ("0, 5, 2", "0, 6, 2")),
    "tanhnormal-boundary-action": (("[1.0]", "[0.5]"),),
}  # fmt: skip
"""By the name of the script: the numbers that make it fail, and what stands there in its healthy twin."""

_RUN = """
import json, runpy, sys, torch
from torch import Tensor, nn
def values(path):
    torch.set_num_threads(1)
    found = {}
    for name, value in runpy.run_path(path).items():
        named = {name: value} if isinstance(value, Tensor) else {}
        if isinstance(value, nn.Module):
            named = {f"{name}.{key}": p for key, p in [*value.named_parameters(), *value.named_buffers()]}
        for key, tensor in named.items():
            if tensor.is_floating_point():
                found[key] = tensor.detach()
                if tensor.is_leaf and tensor.grad is not None:
                    found[key + ".grad"] = tensor.grad
    return found
text = open(sys.argv[1]).read() + open(sys.argv[2]).read()
halves = [torch.bfloat16] * ("bfloat16" in text) + [torch.float16] * ("float16" in text or "half()" in text)
before, after = values(sys.argv[1]), values(sys.argv[2])
worst, where, count = 0.0, "", 0
for name in (before.keys() & after.keys()) - set(sys.argv[3:]):
    one, other = before[name], after[name]
    if one.shape != other.shape or not one.numel():
        continue
    count += 1
    eps = max(torch.finfo(dtype).eps for dtype in (one.dtype, other.dtype, *halves))
    a, b = one.double(), other.double()
    if not bool(torch.isfinite(a).all()):
        worst, where = float("inf"), name + " is not finite in the twin itself"
        break
    moved = float((a - b).abs().max()) / (float(a.abs().max()) + 1e-30) / eps
    moved = moved if moved == moved else float("inf")
    if moved > worst:
        worst, where = moved, name
print("VALUES " + json.dumps([worst, where, count]))
"""
ROUNDING: Final = 16.0
"""So many roundings of the coarsest dtype that the script computes in, relative to the largest value, are rounding."""


def moved(script: Path, patched: str) -> tuple[float, str] | None:
    """By how many roundings the patch moves any value or gradient of the healthy twin; None if there is no twin."""
    numbers = HEALTHY.get(script.stem)
    if numbers is None:
        return None
    texts = [script.read_text(), patched]
    for old, new in numbers:
        texts = [text.replace(old, new) for text in texts]
    inner = _set_on_changed_lines(*texts) - {"loss"}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, text in zip(("before.py", "after.py"), texts, strict=True):
            files.append(Path(folder) / name)
            files[-1].write_text(text)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _RUN, *map(str, files), *inner],
            capture_output=True,
            text=True,
            check=False,
        )
    told = [line for line in done.stdout.splitlines() if line.startswith("VALUES ")]
    if not told:
        return float("inf"), (done.stderr.strip().splitlines() or ["it did not run"])[-1]
    worst, where, count = json.loads(told[-1].removeprefix("VALUES "))
    return (worst, where) if count else None


def _set_on_changed_lines(before: str, after: str) -> set[str]:
    """What the changed lines themselves compute on the way is theirs; what is made of it may not move."""
    old, new = before.splitlines(), set(after.splitlines())
    changed = {number for number, line in enumerate(old, 1) if line not in new}
    return {
        target.id
        for node in ast.walk(ast.parse(before))
        if isinstance(node, ast.Assign) and node.lineno in changed
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
