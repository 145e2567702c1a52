"""A floor under a logarithm, far below every healthy value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.rounded import rounded_by
from stayfinite.remedies.floors import margin, smallest, smallest_normal
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, argument, called, with_argument

_LOGS = ("log", "log2", "log10", "log1p", "logit", "lgamma")
_KINDS = frozenset({
    Kind.LOG_OF_ZERO, Kind.FREQUENCY_ZERO, Kind.EPS_VANISHED, Kind.RATIO_INTO_LOG, Kind.SCALE_NOT_POSITIVE,
})  # fmt: skip


class LogFloor(Remedy):
    """log(x.clamp_min(tiny)): exact for every healthy value; no gradient where the floor holds."""

    name = "log-floor"
    sentence = "clamp the argument of the logarithm to a floor that the dtype can represent"
    kinds = _KINDS
    rank = 4
    cuts_off = True

    def ways(self, case: Case) -> Iterator[Prescription]:
        """Far below healthy values; where some lie below that, at the smallest number of full precision."""
        if case.site is not None:
            # The size of a box is a number of pixels: far below them its logarithm would be an absurd target.
            floors = (
                (margin(case),)
                if case.kind is Kind.BOX_WITHOUT_SIZE
                else (smallest(case), smallest_normal(case))
            )
            for floor in floors:
                edits = tuple(_with(case, lambda text, floor: f"{text}.clamp_min({floor})", floor))
                if edits:
                    yield Prescription(self, case.site.file, edits)

    def fits(self, case: Case) -> bool:
        """A box of no size may have a smallest one; a negative size is another mistake. Zeros that were rounded are
        hidden for some samples only: for another one the floor is a large loss, as it should be."""
        if case.kind is Kind.HIDDEN:
            return rounded_by(case.birth) is not None
        if case.kind is Kind.BOX_WITHOUT_SIZE:
            return case.operand is not None and not case.operand.negatives
        return super().fits(case)


class LogEps(Remedy):
    """log(x + eps): the failing element keeps a gradient; healthy values move by eps / x."""

    name = "log-eps"
    sentence = "add an eps that the dtype can represent inside of the logarithm"
    kinds = _KINDS
    rank = 5
    cuts_off = True

    def edits(self, case: Case) -> list[Edit]:
        return _with(case, lambda text, floor: f"{text} + {floor}", margin(case), add=True)


def _with(case: Case, change: Callable[[str, str], str], floor: str, *, add: bool = False) -> list[Edit]:
    site = case.site
    assert site is not None
    found: list[Edit] = []
    for node in site.calls(*_LOGS):
        inside = argument(node, site)
        if inside is None:
            continue
        here = f"-1 + {margin(case)}" if called(node) == "log1p" and not add else floor
        if called(node) == "lgamma":
            here = margin(case)  # its slope at x is -1/x
        text = with_argument(node, site, 0, change(site.term(inside), here))
        if text is not None:
            found.append(site.replace(node, text))
    return found
