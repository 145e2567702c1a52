"""docs/lint.md has a rule or a reason for every torch function with an unstable region."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from stayfinite.findings import find_rule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lint.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
FUNCTIONS = dict(ROWS[[name for name, _ in ROWS].index("log") :])
# Functions with a pole, an edge of their domain, an infinite slope, or a range that ordinary arguments leave.
UNSTABLE = [
    "log",
    "log2",
    "log10",
    "log1p",
    "logit",
    "xlogy",
    "sqrt",
    "rsqrt",
    "pow",
    "square",
    "div",
    "true_divide",
    "reciprocal",
    "exp",
    "expm1",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
    "logsumexp",
    "norm",
    "linalg.vector_norm",
    "linalg.matrix_norm",
    "cdist",
    "acos",
    "asin",
    "atan2",
    "acosh",
    "atanh",
    "tan",
    "erfinv",
    "digamma",
    "lgamma",
    "polygamma",
    "std",
    "var",
    "mean",
    "nansum",
    "nanmean",
    "nan_to_num",
    "where",
    "prod",
    "cumprod",
    "sum",
    "matmul",
    "einsum",
    "multinomial",
    "inverse",
    "linalg.inv",
    "linalg.solve",
    "linalg.cholesky",
    "linalg.svd",
    "linalg.eigh",
    "linalg.qr",
    "det",
    "logdet",
    "slogdet",
    "matrix_exp",
    "empty",
    "nn.functional.relu",
    "nn.functional.elu",
    "nn.functional.softplus",
    "nn.functional.normalize",
    "nn.functional.cosine_similarity",
    "nn.functional.conv2d",
    "nn.functional.linear",
    "nn.functional.cross_entropy",
    "nn.functional.nll_loss",
    "nn.functional.binary_cross_entropy",
    "nn.functional.kl_div",
    "nn.functional.ctc_loss",
    "nn.functional.batch_norm",
    "nn.functional.layer_norm",
]


def test_every_unstable_function_is_in_the_table() -> None:
    assert len(UNSTABLE) >= 61
    assert [name for name in UNSTABLE if name not in FUNCTIONS] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_names_a_function_and_a_rule_or_a_reason(name: str) -> None:
    found: object = torch
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    text = FUNCTIONS[name]
    codes = re.findall(r"\b(?:SRC|CFG)\d{3}\b", text)
    assert all(find_rule(code) is not None for code in codes)
    assert codes or (text.startswith("reason: ") and len(text) > 25)
