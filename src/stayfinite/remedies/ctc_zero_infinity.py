"""zero_infinity for a CTC loss: a target that does not fit into its frames counts nothing."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, called


class CtcZeroInfinity(Remedy):
    """ctc_loss(..., zero_infinity=True): infeasible samples are left out, all others are the same."""

    name = "ctc-zero-infinity"
    sentence = (
        "leave infeasible targets out of the CTC loss (zero_infinity=True), and check the data for them"
    )
    kinds = frozenset({Kind.CTC_INFEASIBLE})
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        nodes = site.calls("ctc_loss")
        if not nodes:
            nodes = [n for n in ast.walk(site.tree) if isinstance(n, ast.Call) and called(n) == "CTCLoss"]
        found: list[Edit] = []
        for node in nodes:
            given = next((k for k in node.keywords if k.arg == "zero_infinity"), None)
            if given is not None:
                found.append(site.replace(given.value, "True"))
                continue
            call = site.code(node)[:-1].rstrip().rstrip(",")
            comma = "" if call.endswith("(") else ", "
            found.append(site.replace(node, f"{call}{comma}zero_infinity=True)"))
        return found
