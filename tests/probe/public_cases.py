"""Factories out of the public cases: their own statements, run again for every batch, with the inputs left open.

Only the inputs are written down here: which names a batch gives, a batch that is healthy, and the range it may have.
The statements come from the scripts when the test runs. Chosen are the cases in which the failure depends on the batch;
left out are those that fail for every input (a zero parameter, a NaN constant), and those of updates, state and files.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stayfinite.probe import Probe

FOLDER = Path(os.environ.get("STAYFINITE_CASES", Path(__file__).parents[3] / "shared" / "cases"))


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class OpenCase:
    """What of a case is input: a healthy batch, its range, and a statement or two that come before."""

    batch: Callable[[], dict[str, Tensor]]
    range: Any = None
    first: str = ""  # makes the variables of the script out of the batch where they are not the same
    fixed_first: str | None = None  # the same for the repaired script
    has_twin: bool = True  # False: the repair is outside of the loss, or fails for another input
    drop: tuple[str, ...] = ()  # further names that the batch replaces
    fixed_drop: tuple[str, ...] = ()
    last: str = ""  # the loss, where the script computes it inside of its verdict


WIDE = (-200.0, 200.0)
OPEN: dict[str, OpenCase] = {
    "bce-sigmoid-saturates-fp16": OpenCase(
        lambda: {"x": _x(8, 16), "y": torch.randint(2, (8, 1)).float()}, {"x": (-60.0, 60.0), "y": (0.0, 1.0)}
    ),
    "orpo-log1p-minus-exp": OpenCase(
        lambda: {"given": _x(2, 3, 5)}, (-80.0, 80.0), "logits = scale(given)", drop=("logits",)
    ),
    "pow-fractional-zero": OpenCase(
        lambda: {"x": _x(16, 8), "g": torch.rand(16, 34)}, {"x": (-1000.0, 1000.0), "g": (0.0, 1.0)}
    ),
    "normalize-zero-vector-1e12": OpenCase(
        lambda: {"ids": torch.tensor([[1, 2, 5, 7], [3, 4, 9, 8]])}, None, "h = proj(emb(ids))", drop=("h",),
        fixed_first="h = proj(emb(ids))",
    ),
    "nerf-sqrt-negative": OpenCase(
        lambda: {"cam_o": torch.tensor([[0.1, 0.2, 0.3], [0.2, 0.0, 0.1]])}, (-3.0, 3.0),
        has_twin=False,  # all cameras at the origin: 0/0 in the repair itself
    ),
    "mish-softplus-overflow": OpenCase(lambda: {"given": _x(3)}, WIDE, "x = scale(given)", drop=("x",)),
    "masked-mean-zero-tokens": OpenCase(
        lambda: {"h": _x(1, 5, 8), "teacher": torch.softmax(_x(1, 5, 20), -1),
                 "label": torch.tensor([[-100, 3, 4, 1, 2]])},
        {"h": (-5.0, 5.0), "teacher": (0.0, 1.0)},
        fixed_first="mask = (label != -100).float().view(-1)", fixed_drop=("mask",),
    ),
    "std-of-one-sample": OpenCase(lambda: {"obs": _x(4, 4), "adv": _x(4)}, (-5.0, 5.0)),
    "mha-key-padding-all-true": OpenCase(
        lambda: {"x": _x(2, 5, 16), "kpm": torch.tensor([[False] * 5, [False, False, True, True, True]])}
    ),
    "mask-finfo-min-summed": OpenCase(
        lambda: {"given": _x(4, 8), "k": _x(4, 8).bfloat16(), "valid": torch.ones(4, dtype=torch.bool)},
        (-5.0, 5.0), "q = scale(given).bfloat16()", drop=("q",),
        has_twin=False,  # no valid position at all: the mean of nothing
    ),
    "sdpa-nan-in-masked-value": OpenCase(
        lambda: {"k": _x(1, 3, 4), "given": _x(1, 3, 4), "std": torch.tensor([1.0, 2.0, 1.5]),
                 "feat": torch.tensor([0.5, 1.0, 0.2])},
        {"k": (-5.0, 5.0), "given": (-5.0, 5.0), "std": (0.0, 5.0), "feat": (-5.0, 5.0)},
        "q = scale(given); k = k.clone()", drop=("q", "k"), has_twin=False,
    ),
    "ctc-repeated-labels": OpenCase(
        lambda: {"given": _x(6, 1, 8), "hello": torch.tensor([[1, 2, 3, 4, 5]])}, (-5.0, 5.0),
        "lp = scale(given).log_softmax(-1); frames = lp.shape[0]", drop=("lp",), has_twin=False,
    ),
    "mdn-likelihood-underflow": OpenCase(
        lambda: {"x": torch.linspace(-1, 1, 8)[:, None], "y": _x(8, 1)}, {"x": (-1.0, 1.0), "y": (-50.0, 50.0)}
    ),
    "gaussian-nll-variance-collapse": OpenCase(
        lambda: {"x": _x(16, 2), "y": torch.zeros(16, 1)}, {"x": (-500.0, 500.0), "y": (-1.0, 1.0)}
    ),
    "tanhnormal-boundary-action": OpenCase(
        lambda: {"given": torch.zeros(4) + 0.1, "expert": torch.tensor([0.3, -0.5, 0.1, 0.9])}, (-1.0, 1.0),
        "mu = scale(given)", drop=("mu",),
        fixed_first="mu = scale(given); expert = expert.clamp(-1 + 1e-6, 1 - 1e-6)",
    ),
    "gat-softmax-no-max-subtraction": OpenCase(
        lambda: {"given": _x(6)}, WIDE, "e = scale(given)", drop=("e",)
    ),
    "inverse-freq-missing-class": OpenCase(
        lambda: {"labels": torch.arange(1000) % 5, "given": _x(16, 8)}, (-5.0, 5.0),
        last="loss = F.cross_entropy(head(given), labels[:16])",
    ),
    "minmax-constant-image": OpenCase(lambda: {"batch": torch.rand(2, 3, 8, 8)}, (0.0, 1.0),
                                      last="loss = scale(x).pow(2).mean()"),
    "multinomial-nan-secondary": OpenCase(lambda: {"obs": _x(4, 4), "adv": _x(4)}, (-5.0, 5.0)),
    "nan-guard-uses-greater-than": OpenCase(
        lambda: {"x": _x(8, 4), "m": torch.ones(8)}, {"x": (-5.0, 5.0), "m": (0.0, 1.0)}, has_twin=False
    ),
}  # fmt: skip


class Scripted(nn.Module):
    """The modules that a script makes, and a factor of 1 for scripts whose input is the trained tensor itself."""

    def __init__(self, made: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.made = nn.ModuleDict(dict(made))
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def factory(name: str, *, fixed: bool = False) -> Probe:
    """The case as a probe: its modules, its loss as a function of the batch."""
    case = OPEN[name]
    path = FOLDER / f"{name}{'.fixed' if fixed else ''}.py"
    first = case.first if not fixed or case.fixed_first is None else case.fixed_first
    batch = case.batch()
    given = {*batch, *case.drop, *(case.fixed_drop if fixed else ())}
    setup, body = _split(ast.parse(path.read_text(), str(path)), given)
    world: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    torch.manual_seed(0)
    for statement in setup:
        exec(_code(statement, path), world)
    modules = {name: value for name, value in world.items() if isinstance(value, nn.Module)}
    model = Scripted(modules)
    codes = [_code(statement, path) for statement in body]
    begin, end = compile(first, "inputs", "exec"), compile(case.last, "loss", "exec")

    def loss(model: Scripted, batch: dict[str, Tensor]) -> Tensor:
        scope = {**world, **model.made, **batch, "scale": model}
        exec(begin, scope)
        for code in codes:
            exec(code, scope)
        exec(end, scope)
        if "loss" in scope:
            found = scope["loss"]
        elif "z" in scope:
            found = scope["z"] @ torch.ones(8)
        else:
            found = scope["out"]
        return found.sum()

    return Probe(model, batch, loss, range=case.range)


def _code(statement: ast.stmt, path: Path) -> CodeType:
    return compile(ast.Module([statement], []), str(path), "exec")


def _split(tree: ast.Module, given: set[str]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Modules, functions and constants; and what is computed from the inputs."""
    setup: list[ast.stmt] = []
    body: list[ast.stmt] = []
    statements = list(_flat(tree.body))
    touched = set(given)
    for statement in statements:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        made = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if (
            _is_noise(statement)
            or _writes_constant(statement, given)
            or (made & given and not _updates(statement, made & given))
        ):
            continue
        if isinstance(statement, (ast.FunctionDef, ast.Import)) or not names & touched:
            setup.append(statement)
        else:
            body.append(statement)
            touched |= made
    return setup, body


def _flat(statements: list[ast.stmt]) -> Any:
    """Loops and tries without their heads: one pass through them is one batch."""
    for statement in statements:
        if isinstance(statement, (ast.For, ast.Try)):
            yield from _flat(statement.body)
        else:
            yield statement


def _updates(statement: ast.stmt, names: set[str]) -> bool:
    """`adv = (adv - adv.mean()) / ...` computes with the input; `adv = torch.randn(1)` makes it."""
    if isinstance(statement, (ast.If, ast.Assign)):
        used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        indexed = isinstance(statement, ast.Assign) and any(
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id.endswith("_all")
            for node in ast.walk(statement)
        )
        return bool(used & names) and not indexed
    return False


def _writes_constant(statement: ast.stmt, given: set[str]) -> bool:
    """`e[0] = 120.0` makes the failing input; the batch takes its place."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Subscript)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.targets[0].value, ast.Name)
        and statement.targets[0].value.id in given
    )


def _is_noise(statement: ast.stmt) -> bool:
    """Optimizer steps, backward passes, the verdict, and checks after the loss."""
    text = ast.unparse(statement)
    return any(
        word in text
        for word in ("backward()", "opt.", "opt =", "bad =", "requires_grad_", "retain_grad", "skipped",
                     "isfinite(loss)", "had_inf", "manual_seed", "err =")
    )  # fmt: skip
