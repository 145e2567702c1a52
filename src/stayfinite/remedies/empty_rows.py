"""A softmax over rows in which everything is masked: the mask becomes the lowest finite number."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, with_argument

_MASKS = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask")


class EmptyRows(Remedy):
    """softmax(x.clamp_min(lowest number)): rows with something to attend to are the same, an empty one is uniform."""

    name = "empty-rows"
    sentence = "give a row without any allowed position something finite to look at"
    kinds = frozenset({Kind.SOFTMAX_EMPTY_ROW, Kind.MASK_OVERFLOW})
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        lowest = f"{site.torch}.finfo({site.torch}.{case.birth.dtype}).min" if site.torch else "-3e38"
        if case.birth.dtype == "float32" and not site.torch:
            lowest = "-3e38"
        for node in site.calls("softmax", "log_softmax", "logsumexp"):
            inside = argument(node, site)
            if inside is not None:
                text = with_argument(node, site, 0, f"{site.term(inside)}.clamp_min({lowest})")
                if text is not None:
                    found.append(site.replace(node, text))
        if found:
            return found
        for outer in site.here():
            for keyword in outer.keywords if isinstance(outer, ast.Call) else []:
                if keyword.arg in _MASKS:
                    mask = site.term(keyword.value)
                    found.append(site.replace(keyword.value, f"{mask} & ~{mask}.all(-1, keepdim=True)"))
        return found
