"""Facts of data that came in as a table: columns that are bad throughout, beside columns that were rescaled."""

from __future__ import annotations

import torch

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.measure import is_plain

_ROWS, _CLOSE = 8, 0.05  # so many rows make a statistic; so close to 0 and 1 it is one


def columns(table: torch.Tensor) -> dict[str, Plain]:
    """How many columns are NaN throughout, and how many of the others look rescaled; {} where it is no such table."""
    if not is_plain(table) or table.dim() != 2 or not table.is_floating_point() or table.shape[0] < _ROWS:
        return {}
    bad = torch.isnan(table).all(0)
    rest = table[:, ~bad].double()
    if not bool(bad.any()) or not rest.numel() or not bool(torch.isfinite(rest).all()):
        return {}
    standardised = (rest.mean(0).abs() < _CLOSE) & ((rest.std(0) - 1).abs() < _CLOSE)
    between_0_and_1 = (rest.amin(0).abs() < 1e-3) & ((rest.amax(0) - 1).abs() < 1e-3)
    return {
        "bad_columns": int(bad.sum()),
        "rescaled_columns": int((standardised | between_0_and_1).sum()),
        "columns": table.shape[1],
    }
