"""Which findings to show: `--select` and `--ignore` take codes, beginnings of codes, or names."""

from __future__ import annotations

from collections.abc import Sequence

from stayfinite.findings import Finding


def selected(
    findings: Sequence[Finding], select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> list[Finding]:
    """The findings that are selected (all, where nothing is) and not ignored; the longer match decides."""
    return [f for f in findings if (_length(f, select) if select else 0) > _length(f, ignore)]


def _length(finding: Finding, wanted: Sequence[str]) -> int:
    """How much of the code the best match names; -1 for no match."""
    lengths = [len(finding.code) + 1 for item in wanted if item.lower() == finding.name]
    lengths += [len(item) for item in wanted if item and finding.code.startswith(item.upper())]
    return max(lengths, default=-1)


def codes(text: str | None) -> tuple[str, ...]:
    """ "CKP001,NUM" as a tuple."""
    return tuple(item.strip() for item in (text or "").replace(" ", ",").split(",") if item.strip())
