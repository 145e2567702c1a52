"""Random scripts, most of them nonsense that torch would refuse: the reader and every rule come to an end."""

from __future__ import annotations

import ast
import random

from stayfinite.findings import examine
from stayfinite.readers.source import read_source
from stayfinite.readers.source.key_reads import source_keys

CALLED = (
    "log", "sqrt", "exp", "softmax", "sum", "mean", "pow", "clamp", "std", "var", "norm", "where", "einsum",
    "chunk", "max", "min", "tensor", "zeros", "full", "randint", "sigmoid", "relu", "to", "half", "topk",
    "masked_fill", "nansum", "cat", "stack", "unknown", "numel", "size", "item", "scatter_reduce",
    "index_add", "ctc_loss", "cross_entropy", "matmul", "div", "add", "Parameter", "Linear", "Sequential",
    "LambdaLR", "autocast", "register_buffer", "acos", "svd", "Normal", "eye",
)  # fmt: skip
BEFORE = [
    "torch.",
    "F.",
    "nn.",
    "torch.linalg.",
    "x.",
    "self.a.",
    "y[0].",
    "(x+y).",
    "",
    "torch.distributions.",
]
LEAVES = (
    "x", "y", "self.a", "mask", "eps", "1", "0", "-1", "1e-20", "10 ** 400", "None", "True", '"a"',
    "[1, 2]", "()", "[]", '{"a": 1}', 'float("nan")', 'float("inf")', "torch.float16", "x.shape[0]",
    "lambda q: q / 3", "...", "x.T",
)  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "**", "@", ">", "==", "&", "|", "%", "//"]


def expression(chance: random.Random, depth: int) -> str:
    drawn = chance.random()
    if depth <= 0 or drawn < 0.2:
        return chance.choice(LEAVES)
    if drawn < 0.6:
        given = [expression(chance, depth - 1) for _ in range(chance.randint(0, 3))]
        if chance.random() < 0.5:
            given.append(f"{chance.choice(['dim', 'min', 'max', 'dtype'])}={expression(chance, 0)}")
        return f"{chance.choice(BEFORE)}{chance.choice(CALLED)}({', '.join(given)})"
    first, second = expression(chance, depth - 1), expression(chance, depth - 1)
    if drawn < 0.8:
        return f"({first} {chance.choice(OPERATORS)} {second})"
    if drawn < 0.87:
        return f"x[{chance.choice(['0', '-1', 'mask', 'i:i+2', 'x > 0', ':, 0', '...', '1000000'])}]"
    if drawn < 0.93:
        return f"({first} if {second} else {expression(chance, 0)})"
    return f"[{first} for i in {second}]"


def statement(chance: random.Random, depth: int, indent: int) -> str:
    drawn, space = chance.random(), "    " * indent
    value = expression(chance, 3)
    if drawn < 0.5 or not depth:
        return f"{space}{chance.choice(['x', 'y', 'x, y', 'self.a', 'x[0]', 'loss'])} = {value}\n"
    if drawn < 0.6:
        return f"{space}x {chance.choice(['+=', '-=', '*=', '/=', '**='])} {value}\n"
    head = chance.choice([f"if {value}:", f"for i in {value}:", f"with torch.autocast({value}):"])
    body = "".join(statement(chance, depth - 1, indent + 1) for _ in range(2))
    return f"{space}{head}\n{body}"


def test_no_script_makes_it_stop() -> None:
    chance = random.Random(0)
    followed = 0
    for _ in range(250):
        body = "".join(statement(chance, 2, 1) for _ in range(6))
        text = (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
            f"class A(nn.Module):\n  def __init__(self):\n    self.a = {expression(chance, 2)}\n"
            f"def f(x, y, mask, eps=1e-8):\n{body}    optimizer.step(); loss.backward()\n    return f(x, y, mask)\n"
        )
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        followed += 1
        examine(read_source(text, "a.py"))
        source_keys(tree, "a.py")
    assert followed > 150
