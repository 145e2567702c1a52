"""A batch whose loss is not finite is left out, before its gradient is computed."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, called


class SkippedStep(Remedy):
    """`if not isfinite(loss): continue` before the backward pass: no update is made of a bad batch."""

    name = "skipped-step"
    sentence = "leave a batch out whose loss is not finite, before the backward pass"
    kinds = frozenset({Kind.CAME_IN, Kind.GROWN, Kind.POWER_OVERFLOW, Kind.UNKNOWN, Kind.BOX_WITHOUT_SIZE})
    rank = 7
    universal = True
    leaves_steps_out = True

    def fits(self, case: Case) -> bool:
        nothing_to_learn = case.kind in self.kinds or bool(case.how.more.get("as_the_loss"))
        return nothing_to_learn and case.step.trigger != "gradient"

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if not site.torch:
            return []
        for node in ast.walk(site.tree):
            if not (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Call)
                and called(node.value) == "backward"
            ):
                continue
            call = node.value
            if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
                continue
            loop = site.parents.get(node)
            if not isinstance(loop, (ast.For, ast.While)):
                continue
            first = next(s for s in loop.body if s.lineno == node.lineno)
            start = site.span(first)[0]
            indent = " " * first.col_offset
            loss = site.code(call.func.value)
            if any(
                isinstance(s, ast.Assign) and s.lineno == node.lineno and loss in site.code(s.targets[0])
                for s in loop.body
            ):
                at = site.span(node)[0]
                if first is not node:
                    continue
                start = at
            text = f"if not {site.torch}.isfinite({loss}).all():\n{indent}    continue\n{indent}"
            return [Edit(start, start, text, statement=True)]
        return []
