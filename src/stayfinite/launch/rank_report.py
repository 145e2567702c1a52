"""What one rank of a script has to report, and how the reports of all ranks become one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.findings import Incident, dumps

FOLDER_VARIABLE = "STAYFINITE_RANK_REPORTS"
"""Where ranks that `stayfinite run` has started leave their reports."""


@dataclass(slots=True)
class RankReport:
    """One process's part of a run."""

    rank: int
    world_size: int  # as torch.distributed had it; 1 if the script never started it
    incidents: list[Incident] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    refused: int = 0
    trained: bool = False

    def write(self, folder: Path) -> None:
        """Whole or not at all: the process may be killed at any time."""
        data = {
            "rank": self.rank,
            "world_size": self.world_size,
            "incidents": [incident.to_json() for incident in self.incidents],
            "remarks": self.remarks,
            "refused": self.refused,
            "trained": self.trained,
        }
        temporary = folder / f".{self.rank}.{os.getpid()}"
        temporary.write_text(dumps(data), encoding="utf-8")
        temporary.replace(folder / f"{self.rank}.json")

    @classmethod
    def read(cls, path: Path) -> RankReport:
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "incidents": [Incident.from_json(item) for item in data["incidents"]]})


def read_all(folder: Path) -> list[RankReport]:
    """In the order of the ranks; of one that was killed there is none."""
    return sorted((RankReport.read(path) for path in folder.glob("*.json")), key=lambda report: report.rank)


def merged(reports: list[RankReport]) -> tuple[list[Incident], list[str]]:
    """The incidents and remarks of all ranks, each once. What all ranks know is told by the first."""
    incidents: dict[tuple[object, ...], Incident] = {}
    for report in reports:
        for incident in report.incidents:
            known = incidents.get(key := _identity(incident))
            if known is None or (known.birth is None and incident.birth is not None):
                incidents[key] = incident
    return sorted(incidents.values(), key=lambda incident: incident.step), list(_remarks(reports))


def _identity(incident: Incident) -> tuple[object, ...]:
    """The same step that failed in the same way is the same failure, whichever rank tells of it."""
    agreed = incident.world_size > 1 and incident.action != "none"
    if agreed:
        return incident.step, incident.trigger
    birth = incident.birth
    where = (birth.op, birth.file, birth.line) if birth is not None else None
    return incident.step, incident.trigger, where, tuple(finding.code for finding in incident.findings)


def _remarks(reports: list[RankReport]) -> Iterator[str]:
    said: dict[str, list[int]] = {}
    for report in reports:
        for remark in report.remarks:
            said.setdefault(remark, []).append(report.rank)
    for remark, ranks in said.items():
        alike = len(ranks) == len(reports)
        yield remark if alike else f"rank {', '.join(map(str, ranks))}: {remark}"
    trained = [report for report in reports if report.trained]
    if len(trained) > 1 and all(report.world_size == 1 for report in trained):
        yield (
            f"The script did not start torch.distributed: {len(trained)} copies of it trained, each by itself. "
            "Call torch.distributed.init_process_group() and wrap the model, or leave out --nproc-per-node."
        )
