"""A mean over nothing: a sum over a count of at least 1, also inside of a cross entropy without labels."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_method, is_pure, new_name

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
        means = site.calls("mean")
        for node in [one for one in means if _may_select(argument(one, site))] or means:
            text = _mean_of_all(node, site, len(found))
            if text is not None:
                found.append(site.replace(node, text))
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
        if found or not site.torch or case.kind is not Kind.EMPTY_REDUCTION:
            return found
        # A loss object: its settings are elsewhere. Without labels its gradient is 0 as it should be; its value is not.
        if case.call in _LOSSES:
            for one in site.here():
                if isinstance(one, ast.Call) and called(one) != "backward" and len(one.args) == 2:
                    return [site.replace(one, f"{site.torch}.nan_to_num({site.code(one)})")]
        return []


def _may_select(values: ast.expr | None) -> bool:
    """A name may stand for what was selected; of other expressions those that select do."""
    return isinstance(values, ast.Name) or any(
        isinstance(one, ast.Subscript) or (isinstance(one, ast.Call) and called(one) == "masked_select")
        for one in (ast.walk(values) if values is not None else ())
    )


def _mean_of_all(node: ast.Call, site: SourceSite, number: int) -> str | None:
    """x.mean() or torch.mean(x), over all or over one dim. What is no name gets one there: it is computed once."""
    values = argument(node, site)
    given = _dim(node, site)
    if values is None or given is None:
        return None
    dim, arguments = given
    count = f"size({dim})" if dim else "numel()"
    if isinstance(values, ast.Name):
        return f"({values.id}.sum({arguments}) / max(1, {values.id}.{count}))"
    if isinstance(site.scope(node), ast.Lambda) or any(
        isinstance(one, ast.Call) and called(one) == "mean" for one in ast.walk(values)
    ):
        return None
    name = new_name(site, "chosen", number)
    return f"(({name} := {site.code(values)}).sum({arguments}) / max(1, {name}.{count}))"


def _dim(node: ast.Call, site: SourceSite) -> tuple[str, str] | None:
    """The dim ("" for all) and the arguments for the sum; None where it is no single dim that one can read."""
    own = node.args[0 if is_method(node, site) else 1 :]
    keywords = {one.arg: one.value for one in node.keywords if one.arg != "input"}
    if len(own) > 2 or not set(keywords) <= {"dim", "axis", "keepdim"}:
        return None
    dim = own[0] if own else keywords.get("dim", keywords.get("axis"))
    keep = own[1] if len(own) > 1 else keywords.get("keepdim")
    if dim is None:
        return ("", "") if keep is None else None
    written = site.code(dim)
    if not written.lstrip("-").isdigit():
        return None
    return written, f"dim={written}" + (f", keepdim={site.code(keep)}" if keep is not None else "")
