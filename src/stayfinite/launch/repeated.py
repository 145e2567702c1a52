"""repeat: a script's failure once more from its capsule, as it is now or with a change of its source."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from stayfinite.findings import Incident, Severity
from stayfinite.launch import second_run
from stayfinite.launch.options import Options
from stayfinite.launch.script_capsule import beginning_of


@dataclass(slots=True)
class Repeated:
    """What came of it. `reason`: why nothing was seen, as a sentence."""

    incidents: list[Incident] = field(default_factory=list)
    reason: str = ""
    ran: bool = True

    @property
    def failures(self) -> list[Incident]:
        return [
            one
            for one in self.incidents
            if not one.findings or any(finding.severity is Severity.ERROR for finding in one.findings)
        ]

    def has(self, incident: Incident) -> bool:
        """Whether the same failure is among them: born at the same line of a file of that name."""
        here = incident.birth
        return any(
            here is None
            or (one.birth is not None and one.birth.line == here.line and _name(one) == _name(incident))
            for one in self.failures
        )


def _name(incident: Incident) -> str:
    return os.path.basename(incident.birth.file or "") if incident.birth is not None else ""  # noqa: PTH119


def repeat(facts: dict[str, Any], incident: Incident, seconds: float, script: str | None = None) -> Repeated:
    """Run the script of a capsule again under the tracer, in a sandbox."""
    options = Options(
        script or facts["target"],
        tuple(facts["arguments"]),
        module=bool(facts["module"]) and script is None,
        locate_limit=seconds,
    )
    start = beginning_of(facts)
    # a guard of the script's own tries nothing
    start.environment = {**start.environment, "STAYFINITE_PROVE": "off"}
    if script is not None:
        options = Options(os.path.realpath(script), options.arguments, locate_limit=seconds)
    failure = second_run.FailurePoint(incident.step, 0.0, f"step {incident.step} failed")
    reason = second_run.obstacle(options, start, failure)
    if reason is not None:
        return Repeated(reason=reason, ran=False)
    found = second_run.once(options, start, failure, time.monotonic() + seconds)
    return Repeated(
        found.incidents, found.reason, ran=found.reached or bool(found.incidents) or _ended(found.reason)
    )


def _ended(reason: str) -> bool:
    """A script may be over before the failing step is: that is an answer too."""
    return "ended at step" in reason or "came through step" in reason
