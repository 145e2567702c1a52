"""A larger eps in normalize: the gradient of a zero vector is bounded by 1 / eps."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit

_CALLS = ("normalize", "cosine_similarity", "layer_norm", "rms_norm")


class NormalizeEps(Remedy):
    """normalize(x, eps=1e-6): vectors longer than that are the same."""

    name = "normalize-eps"
    sentence = "give normalize an eps that bounds the gradient of a zero vector"
    kinds = frozenset({Kind.ZERO_NORM, Kind.ROOT_GRADIENT_AT_ZERO})
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls(*_CALLS):
            if any(k.arg == "eps" for k in node.keywords):
                found += [site.replace(k.value, margin(case)) for k in node.keywords if k.arg == "eps"]
            elif node.args or node.keywords:
                call = site.code(node)[:-1].rstrip().rstrip(",")
                found.append(site.replace(node, f"{call}, eps={margin(case)})"))
        return found
