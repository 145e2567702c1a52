"""Memory that nobody wrote to is made as zeros: what it held was garbage, finite or not."""

from __future__ import annotations

from typing import Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, called

_WRITTEN: Final = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}


class ZeroedMemory(Remedy):
    """torch.zeros in the place of torch.empty."""

    name = "zeroed-memory"
    sentence = "write to the memory before it is read: zeros here, or the initialisation that was left out"
    kinds = frozenset({Kind.UNINITIALISED})
    rank = 3

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found = []
        for node in site.calls(*_WRITTEN):
            name, function = called(node), site.code(node.func)
            text = f"{function.removesuffix(name)}{_WRITTEN[name]}{site.code(node)[len(function) :]}"
            found.append(site.replace(node, text))
        return found
