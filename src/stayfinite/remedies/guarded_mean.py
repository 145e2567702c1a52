"""A mean over nothing: a sum over a count of at least 1, also inside of a cross entropy without labels."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, called, is_pure

_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss")


class GuardedMean(Remedy):
    """The sum over at least one element: 0 where nothing is selected, the same mean everywhere else."""

    name = "guarded-mean"
    sentence = "divide the sum by a count of at least 1 instead of taking the mean of nothing"
    kinds = frozenset({Kind.EMPTY_REDUCTION})
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("mean"):
            values = argument(node, site)
            if (
                values is not None
                and isinstance(values, ast.Name)
                and len(node.args) + len(node.keywords) <= 1
            ):
                code = site.code(values)
                found.append(site.replace(node, f"({code}.sum() / max(1, {code}.numel()))"))
        for node in site.calls("cross_entropy", "nll_loss"):
            labels = argument(node, site, 1, "target")
            names = {k.arg for k in node.keywords}
            if (
                labels is None
                or not is_pure(labels)
                or names & {"weight", "reduction", "ignore_index", "label_smoothing"}
                or len(node.args) > 2
            ):
                continue
            call = site.code(node)[:-1].rstrip().rstrip(",")
            found.append(
                site.replace(
                    node, f'({call}, reduction="sum") / ({site.code(labels)} != -100).sum().clamp(min=1))'
                )
            )
        if found or not site.torch:
            return found
        # A loss object: its settings are elsewhere. Without labels its gradient is 0 as it should be; its value is not.
        if case.call in _LOSSES:
            for one in site.here():
                if isinstance(one, ast.Call) and called(one) != "backward" and len(one.args) == 2:
                    return [site.replace(one, f"{site.torch}.nan_to_num({site.code(one)})")]
        return []
