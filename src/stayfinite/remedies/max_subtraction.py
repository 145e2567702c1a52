"""exp of the distance from the largest: what is normalised afterwards is the same, and nothing overflows."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_pure, with_argument


class MaxSubtraction(Remedy):
    """exp(x - max(x)), by group where the sums are by group; a division that follows cancels the factor."""

    name = "max-subtracted"
    sentence = "subtract the maximum before exp; the normalisation that follows cancels it"
    kinds = frozenset({Kind.EXP_OVERFLOW, Kind.EXP_UNDERFLOW})
    rank = 2

    def fits(self, case: Case) -> bool:
        normalised = any("div" in step.op or "softmax" in step.op for step in case.step.path)
        return case.kind in self.kinds and (normalised or case.kind is Kind.EXP_UNDERFLOW)

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("exp"):
            inside = argument(node, site)
            if inside is None or not is_pure(inside):
                continue
            text = with_argument(node, site, 0, f"{site.term(inside)} - {_largest(node, inside, site)}")
            if text is not None:
                found.append(site.replace(node, text))
        return found

    def observed(self, case: Case) -> list[ast.expr]:
        """The quotient is what must not change; the exponentials do."""
        site = case.site
        assert site is not None
        lines = {
            s.line for s in case.step.path if s.line is not None and s.file == site.file and "div" in s.op
        }
        return [node for line in sorted(lines) for node in site.operations("div", line=line)]


def _largest(node: ast.Call, inside: ast.expr, site: SourceSite) -> str:
    """The maximum: of each group, or of each row, where the exponentials are summed by group or by row."""
    x = site.term(inside)
    statement = site.statement(node)
    name = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if isinstance(name, ast.Name):
        for call in ast.walk(site.scope(node)):
            if (
                isinstance(call, ast.Call)
                and called(call) in ("index_add", "scatter_add")
                and len(call.args) >= 3
            ):
                base = argument(call, site)
                if isinstance(call.args[2], ast.Name) and call.args[2].id == name.id and base is not None:
                    dim, index = site.code(call.args[0]), site.code(call.args[1])
                    given = f'{dim}, {index}, {x}.detach(), "amax", include_self=False'
                    groups = f"{site.term(base)}.scatter_reduce({given})"
                    return f"{groups}[{index}]"
    row = _summed_over(node, name.id if isinstance(name, ast.Name) else None, site)
    return f"{x}.detach().max()" if row is None else f"{x}.detach().amax({row}, keepdim=True)"


def _summed_over(node: ast.Call, name: str | None, site: SourceSite) -> str | None:
    """The dim of `e.sum(dim)`, where `e` is these exponentials or their name; None if there is none, or several.

    What is far below the largest of all may be the largest of its row: without this its row would sum to 0.
    """
    dims = set()
    for call in ast.walk(site.scope(node)):
        if not isinstance(call, ast.Call) or called(call) != "sum":
            continue
        base = argument(call, site)
        same = base is not None and site.code(base) in (name, site.code(node))
        method = isinstance(call.func, ast.Attribute) and base is call.func.value
        given = call.args[0 if method else 1 :][:1] or [
            k.value for k in call.keywords if k.arg in ("dim", "axis")
        ]
        if same:
            dims.add(site.code(given[0]) if given else None)
    return dims.pop() if len(dims) == 1 else None
