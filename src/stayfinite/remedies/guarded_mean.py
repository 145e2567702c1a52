"""A mean over nothing: a sum over a count of at least 1, also inside of a cross entropy without labels."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_method, is_pure, new_name

_OF_LABELS = ("cross_entropy", "nll_loss")
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
        for node in site.calls(*_OF_LABELS):
            text = _of_labels(node, site)
            if text is not None:
                found.append(site.replace(node, text))
        if found or not site.torch or case.kind is not Kind.EMPTY_REDUCTION:
            return found
        # A loss object: its settings are elsewhere.
        if case.call in _LOSSES:
            for one in site.here():
                if isinstance(one, ast.Call) and called(one) != "backward" and len(one.args) == 2:
                    text = _of_something(one, site, case.call in _OF_LABELS)
                    return [site.replace(one, text)] if text is not None else []
        return []


def _of_labels(node: ast.Call, site: SourceSite) -> str | None:
    """A cross entropy of labels of which all may be ignored: the sum over those that count, or 0 without any."""
    labels = argument(node, site, 1, "target")
    given = {one.arg: one.value for one in node.keywords}
    ignored = given.get("ignore_index")
    if labels is None or not is_pure(labels) or len(node.args) > 2 or "reduction" in given:
        return None
    number = site.term(ignored) if ignored is not None else "-100"
    if set(given) <= {"input", "target", "ignore_index"} and (ignored is None or is_pure(ignored)):
        call = site.code(node)[:-1].rstrip().rstrip(",")
        return f'({call}, reduction="sum") / ({site.term(labels)} != {number}).sum().clamp(min=1))'
    scores = argument(node, site)
    if scores is None or not is_pure(scores) or (ignored is not None and not is_pure(ignored)):
        return None
    return _or_zero(node, scores, f"({site.term(labels)} != {number}).any()", site)


def _of_something(node: ast.Call, site: SourceSite, of_labels: bool) -> str | None:
    """A loss object called with outputs and targets: its own mean wherever there is something to take one of."""
    outputs, targets = node.args
    if not is_pure(outputs) or not is_pure(targets):
        return None
    loss = site.code(node.func)
    some = (
        f"({site.term(targets)} != {loss}.ignore_index).any()"
        if of_labels
        else f"{site.term(targets)}.numel()"
    )
    return _or_zero(node, outputs, some, site)


def _or_zero(node: ast.Call, outputs: ast.expr, some: str, site: SourceSite) -> str:
    """0 with a gradient of 0 where there is nothing; a NaN of the outputs stays one."""
    return f"({site.code(node)} if {some} else {site.term(outputs)}.sum() * 0.0)"


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
