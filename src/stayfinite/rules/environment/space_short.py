"""ENV004: little memory or disk is left."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.environment import Environment

_GB = 1 << 30
_DISK, _MEMORY = 2 * _GB, 1 * _GB


class SpaceShort(Rule[Environment]):
    """Little memory or disk is left where the run writes.

    ## What it finds
    Less than 2 GB free on the disk of the run folder, less than 1 GB of host memory, or less than a tenth of a device's
    memory.

    ## Why it is bad
    A full disk cuts a checkpoint in half while it overwrites the good one. A process without memory is killed, and what
    it was saving with it.

    ## Example
    `PytorchStreamReader failed reading zip archive: failed finding central directory` the next morning

    ## The fix
    Free space, write elsewhere, keep fewer checkpoints; write to a temporary name and rename.

    ## The popular fix that does not work
    Saving more often.

    ## References
    rule CKP020 for the damaged file
    """

    code = "ENV004"
    name = "space-short"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.WARNING

    def check(self, subject: Environment) -> Iterator[Finding]:
        found = []
        if subject.disk_free is not None and subject.disk_free < _DISK:
            found.append(
                (f"the disk of {subject.folder} has {subject.disk_free / _GB:.1f} GB left", subject.disk_free)
            )
        if subject.memory_free is not None and subject.memory_free < _MEMORY:
            found.append((f"{subject.memory_free / _GB:.1f} GB of host memory are left", subject.memory_free))
        for device in subject.devices:
            if device.free is not None and device.memory and device.free < device.memory // 10:
                found.append((f"{device.free / _GB:.1f} GB of {device.name} are left", device.free))
        for message, free in found:
            yield self.finding(
                message,
                fix="free space or write elsewhere before the run starts",
                evidence={"free": free, "folder": subject.folder},
            )
