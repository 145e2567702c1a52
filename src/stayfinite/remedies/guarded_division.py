"""A divisor that cannot be 0: a count of at least 1, a range or a deviation of at least an eps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.sizes import is_number, is_size
from stayfinite.remedies.source import Edit, SourceSite, argument, new_name, with_argument

_COUNTS = ("count", "sum of a mask", "a count")


class GuardedDivision(Remedy):
    """a / b.clamp(min=1) for a count, a / b.clamp_min(eps) for a size, a / where(b == 0, 1, b) for anything else."""

    name = "guarded-division"
    sentence = "guard the divisor: a count is at least 1, a size at least an eps"
    kinds = frozenset({
        Kind.DIVISION_BY_ZERO, Kind.CONSTANT_RESCALED, Kind.EMPTY_REDUCTION, Kind.FREQUENCY_ZERO, Kind.EXP_UNDERFLOW,
        Kind.ZERO_NORM, Kind.BOX_WITHOUT_SIZE, Kind.EPS_VANISHED, Kind.RATIO_INTO_LOG, Kind.SCALE_NOT_POSITIVE,
        Kind.OPTIMIZER_DIVISION, Kind.SPREAD_OF_ONE,
    })  # fmt: skip
    rank = 2
    cuts_off = True

    def fits(self, case: Case) -> bool:
        """A deviation divides inside of torch, unless it is written out."""
        return super().fits(case) and (case.kind is not Kind.SPREAD_OF_ONE or bool(case.how.word))

    def ways(self, case: Case) -> Iterator[Prescription]:
        """A floor that is close to 0 may give an update as absurd as the division did: then 1 in place of each 0. Of
        several divisions on the line one alone may be what can be guarded: the others divide by plain numbers."""
        yield from super().ways(case)
        if case.site is None:
            return
        floors, replaced = self.edits(case), self._edits(case, zeros_only=True)
        if replaced and replaced != floors:
            yield Prescription(self, case.site.file, tuple(replaced))
        for one in floors if len(floors) > 1 else ():
            yield Prescription(self, case.site.file, (one,))

    def edits(self, case: Case) -> list[Edit]:
        return self._edits(case, zeros_only=False)

    def _edits(self, case: Case, *, zeros_only: bool) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        whole = isinstance(case.birth.scalars.get("other"), int)  # an integer that was 0: a count
        sizes: list[Edit] = []  # numbers of Python that say how many: guarded where nothing else divides
        for node in site.operations("div"):
            divisor = argument(node, site, 1, "other")
            counts = whole and not isinstance(divisor, ast.Constant)
            if divisor is not None and (is_size(divisor, site) or (counts and is_number(divisor, site))):
                text = with_argument(node, site, 1, f"max({site.code(divisor)}, 1)")
                sizes += [site.replace(node, text)] if text is not None else []
            if divisor is None or is_number(divisor, site):
                continue
            guarded = _without_zeros(site, divisor) if zeros_only else self._guarded(case, divisor)
            text = with_argument(node, site, 1, guarded) if guarded is not None else None
            if text is not None:
                found.append(site.replace(node, text))
        return found or ([] if zeros_only else sizes)

    def _guarded(self, case: Case, divisor: ast.expr) -> str:
        site, operand = case.site, case.operand
        assert site is not None
        term = site.term(divisor)
        if case.how.word in _COUNTS or (operand is not None and operand.is_integer):
            return f"{term}.clamp(min=1)"
        negative = operand is not None and operand.negatives > 0
        if site.torch and (negative or isinstance(divisor, (ast.Name, ast.Attribute))):
            return _where(site.torch, site.code(divisor), site.code(divisor))
        return f"{term}.clamp_min({margin(case)})"


def _without_zeros(site: SourceSite, divisor: ast.expr) -> str | None:
    """The divisor is given a name at its place, so that it is computed once; a lambda has no place for one."""
    if site.torch is None or isinstance(site.scope(divisor), ast.Lambda):
        return None
    name = new_name(site, "divisor")
    return _where(site.torch, f"({name} := {site.code(divisor)})", name)


def _where(torch: str, first: str, again: str) -> str:
    return f"{torch}.where({first} == 0, {torch}.ones_like({again}), {again})"
