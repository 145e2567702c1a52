"""What to measure at a birth, by kind of operation. One file = one kind; each holds a table op -> measurement."""

from __future__ import annotations

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.facts import decomposition, domain, lookup, quotient, reduction
from stayfinite.replay.facts.call import Call, Measurement

_TABLES: tuple[dict[str, Measurement], ...] = (
    domain.TABLE,
    quotient.TABLE,
    reduction.TABLE,
    lookup.TABLE,
    decomposition.TABLE,
)

__all__ = ["Call", "measure"]


def measure(op: str, call: Call) -> dict[str, Plain]:
    """The facts of one call, for the bare name of its op; {} where there is nothing special to measure."""
    found: dict[str, Plain] = {}
    for table in _TABLES:
        measurement = table.get(op)
        if measurement is not None:
            found.update(measurement(call))
    return found
