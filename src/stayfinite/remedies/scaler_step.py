"""The step that a GradScaler makes, in the place of the optimizer's own."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.run_record import Place
from stayfinite.findings.update_size import steps_past_the_scaler
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, called


class ScalerStep(Remedy):
    """scaler.step(optimizer) and scaler.update(): gradients are divided by the scale first, and checked."""

    name = "scaler-step"
    sentence = (
        "let the scaler make the step (scaler.step(optimizer)): it divides the gradients by the scale first"
    )
    kinds = frozenset(Kind)
    trains_otherwise, of_updates, rank = True, True, 1
    goes_first = True
    universal = True  # every update is another one: no control for what is about values

    def fits(self, case: Case) -> bool:
        """Gradients that were still scaled were applied."""
        return steps_past_the_scaler(case.step)

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        scaler = next((one for one in _methods(site, "scale") if one.args), None)
        if scaler is None or not isinstance(scaler.func, ast.Attribute):
            return []
        owner = site.code(scaler.func.value)
        update = (
            ""
            if any(_owner(one, site) == owner for one in _methods(site, "update"))
            else f"; {owner}.update()"
        )
        places = [one.stepped for one in case.step.run.optimizers]
        return [
            Edit(*site.span(one), f"{owner}.step({_owner(one, site)}){update}", statement=True)
            for one in _methods(site, "step")
            if not one.args and any(_is_at(one, place, site) for place in places)
        ]


def _methods(site: SourceSite, name: str) -> list[ast.Call]:
    """Calls of a method of this name, anywhere in the file."""
    found = [one for one in ast.walk(site.tree) if isinstance(one, ast.Call) and called(one) == name]
    return [one for one in found if isinstance(one.func, ast.Attribute)]


def _owner(call: ast.Call, site: SourceSite) -> str:
    assert isinstance(call.func, ast.Attribute)
    return site.code(call.func.value)


def _is_at(call: ast.Call, place: Place, site: SourceSite) -> bool:
    """It is a statement by itself, at this line."""
    last = call.end_lineno or call.lineno
    alone = isinstance(site.parents.get(call), ast.Expr)
    return alone and place.file == site.file and place.line is not None and call.lineno <= place.line <= last
