"""Matrix decompositions and solves: how near the matrix is to one for which they are not defined."""

from __future__ import annotations

import torch

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.facts.call import Call, Measurement

_LARGEST = 512  # a spectrum of a larger matrix takes too long to compute for a report


def _spectrum(call: Call) -> dict[str, Plain]:
    matrix = call.tensor("A", "self", "input")
    if matrix is None or matrix.dim() < 2 or max(matrix.shape[-2:]) > _LARGEST:
        return {}
    if not bool(torch.isfinite(matrix).all()):
        return {"finite": False}
    values = torch.linalg.svdvals(matrix)
    gaps = (values[..., :-1] - values[..., 1:]).abs()
    smallest, largest = float(values.min()), float(values.max())
    return {
        "finite": True,
        "smallest": smallest,
        "largest": largest,
        "smallest_gap": float(gaps.min()) if gaps.numel() else None,
        "condition": largest / smallest if smallest > 0 else None,
    }


_OPS = [
    "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_cholesky_ex", "cholesky", "linalg_inv_ex",
    "linalg_solve_ex", "linalg_lu_factor_ex", "linalg_qr", "linalg_det", "linalg_slogdet", "linalg_pinv",
]  # fmt: skip

TABLE: dict[str, Measurement] = dict.fromkeys(_OPS, _spectrum)
