"""Births in the backward pass: traced snippets with a finite loss and bad gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rules.traced import explained

SQRT_POW_GRAD_AT_ZERO = {
    "norm by hand of a zero difference": """
        a = torch.ones(3, 2, requires_grad=True); b = torch.ones(3, 2)
        loss = ((a - b) ** 2).sum(-1).sqrt().mean()  #!
        loss.backward()
    """,
    "square root of a learnable variance at zero": """
        v = nn.Parameter(torch.zeros(4)); x = torch.randn(4)
        loss = (x * torch.sqrt(v)).sum()  #!
        loss.backward()
    """,
    "power below one": """
        g = torch.tensor([0.0, 0.5], requires_grad=True)
        loss = (g ** 0.3).mean()  #!
        loss.backward()
    """,
    "eps outside of the root": """
        x = torch.zeros(2, 3, requires_grad=True)
        loss = (x.pow(2).sum(1).sqrt() + 1e-8).mean()  #!
        loss.backward()
    """,
    "variance hinge on constant features": """
        z = torch.ones(8, 4, requires_grad=True)
        loss = F.relu(1 - torch.sqrt(z.var(dim=0))).mean()  #!
        loss.backward()
    """,
    "signed square root": """
        x = torch.tensor([0.0, 4.0, -1.0], requires_grad=True)
        loss = (torch.sign(x) * torch.sqrt(torch.abs(x))).sum()  #!
        loss.backward()
    """,
}

WHERE_UNSAFE_BRANCH = {
    "where around sqrt": """
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        loss = torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)).sum()  #!
        loss.backward()
    """,
    "where around a division": """
        n = torch.tensor([1.0, 2.0], requires_grad=True); d = torch.tensor([0.0, 4.0], requires_grad=True)
        loss = torch.where(d == 0, torch.zeros_like(n), n / d).sum()  #!
        loss.backward()
    """,
    "where around log": """
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        loss = torch.where(x > 0, x * torch.log(x), torch.zeros_like(x)).sum()  #!
        loss.backward()
    """,
    "nan_to_num after log": """
        x = torch.tensor([0.0, 2.0], requires_grad=True)
        loss = torch.nan_to_num(torch.log(x)).sum()  #!
        loss.backward()
    """,
    "masked_fill after a quotient": """
        a = torch.randn(4, requires_grad=True); c = torch.tensor([0.0, 1.0, 2.0, 0.0])
        y = a * (a / (c * a.detach().abs()))  #!
        loss = y.masked_fill(c == 0, 0.0).sum(); loss.backward()
    """,
    "where around exp": """
        x = torch.tensor([100.0, 1.0], requires_grad=True)
        loss = torch.where(x > 20, x, torch.log(1 + torch.exp(x))).sum()  #!
        loss.backward()
    """,
    "nansum over roots of negatives": """
        x = torch.tensor([-2.0, 3.0], requires_grad=True)
        loss = torch.sqrt(x).nansum()  #!
        loss.backward()
    """,
}

NORMALIZE_ZERO_VECTOR = {
    "division by a norm of zero": """
        x = torch.zeros(2, 3, requires_grad=True)
        loss = (x / x.norm(dim=-1, keepdim=True)).sum()  #!
        loss.backward()
    """,
    "functional normalize of a padded row": """
        x = torch.randn(3, 4); x[2] = 0.0; x.requires_grad_()
        z = F.normalize(x, dim=1)  #!
        loss = (z @ torch.ones(4)).sum(); loss.backward()
    """,
    "weight vector normalised by linalg": """
        w = nn.Parameter(torch.zeros(4))
        loss = (w / torch.linalg.norm(w)).sum()  #!
        loss.backward()
    """,
    "quaternion of zero length": """
        q = torch.zeros(1, 4, requires_grad=True)
        r = q / torch.linalg.vector_norm(q, dim=-1, keepdim=True)  #!
        loss = r.sum(); loss.backward()
    """,
}

LINALG_DEGENERATE = {
    "singular vectors of the identity": """
        x = torch.eye(3, requires_grad=True)
        u, s, v = torch.linalg.svd(x)  #!
        loss = (u @ torch.arange(9.0).view(3, 3)).sum() + v[0, 1]; loss.backward()
    """,
    "eigenvectors of a symmetric matrix with repeats": """
        x = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
        w, v = torch.linalg.eigh(x)  #!
        loss = (v * torch.arange(9.0).view(3, 3)).sum(); loss.backward()
    """,
    "cholesky of a singular covariance": """
        f = torch.ones(4, 3, requires_grad=True)
        loss = torch.linalg.cholesky(f.t() @ f).sum()  #!
    """,
    "inverse of a singular matrix": """
        f = torch.zeros(3, 3, requires_grad=True)
        loss = torch.linalg.inv(f).sum()  #!
    """,
    "log determinant of a singular matrix": """
        f = torch.zeros(3, 3, requires_grad=True)
        loss = torch.linalg.slogdet(f)[1]  #!
        loss.backward()
    """,
}

TABLES = {
    "SQRT_POW_GRAD_AT_ZERO": SQRT_POW_GRAD_AT_ZERO,
    "WHERE_UNSAFE_BRANCH": WHERE_UNSAFE_BRANCH,
    "NORMALIZE_ZERO_VECTOR": NORMALIZE_ZERO_VECTOR,
    "LINALG_DEGENERATE": LINALG_DEGENERATE,
}
SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in TABLES.items()
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_forward_line(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)


@pytest.mark.parametrize("source", SQRT_POW_GRAD_AT_ZERO.values(), ids=SQRT_POW_GRAD_AT_ZERO.keys())
def test_these_losses_are_finite(source: str, tmp_path: Path) -> None:
    assert torch.isfinite(explained(source, tmp_path).names["loss"])
