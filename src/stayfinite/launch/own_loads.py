"""States that only a second run has loaded as bad: it refuses nothing, and has saved what the first run never had."""

from __future__ import annotations

from collections.abc import Iterable

from stayfinite.findings import Finding, Incident
from stayfinite.findings.subjects.run_record import LoadEvent

_OF_LOADS = ("STA032", "STA043")


def without_its_own_loads(incidents: list[Incident], loads: Iterable[LoadEvent]) -> list[Incident]:
    """What is told of a load counts where the first run, too, loaded such a state there. `loads`: of the first run.

    What then came in with the load is no incident of the run; the first one stays, if anything else is told of it.
    """
    bad = {(load.place.file, load.place.line) for load in loads if load.nonfinite or load.enormous}

    def is_its_own(finding: Finding) -> bool:
        return finding.code in _OF_LOADS and (finding.file, finding.line) not in bad

    kept = []
    for place, incident in enumerate(incidents):
        own = [finding for finding in incident.findings if is_its_own(finding)]
        came_in = incident.birth is not None and incident.birth.op in ("outside", "parameter", "buffer")
        others = [finding for finding in incident.findings if finding not in own]
        if own and ((place and came_in) or not others):
            continue
        incident.findings[:] = others
        kept.append(incident)
    return kept
