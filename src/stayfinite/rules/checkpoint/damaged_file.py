"""CKP020: a file that is cut off, has wrong sizes, or cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint
from stayfinite.rules.checkpoint.problems import report


class DamagedFile(Rule[Checkpoint]):
    """The file is cut off, promises more bytes than it has, or contradicts itself.

    ## What it finds
    Truncated files, storages of the wrong size, tensors that reach outside their storage, overlapping members,
    headers that cannot be parsed. Nothing of what such a file promises is allocated.

    ## Why it is bad
    It was not written or copied completely (full disk, killed process, interrupted transfer) or was changed since.
    What can still be read may be from another time than the rest.

    ## Example
    A job killed by its time limit while `torch.save` was writing over the only checkpoint.

    ## The fix
    Take the checkpoint before it, or copy it again. Write to a temporary name and rename when complete.

    ## The popular fix that does not work
    Repairing the archive with zip tools: they restore the table, not the missing bytes.

    ## References
    ZIP application note (end of central directory); safetensors format
    """

    code = "CKP020"
    name = "damaged-file"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        fix = "take the checkpoint before it or copy it again; write to a temporary name and rename when complete"
        yield from report(self, subject, fix, "damaged", "oversized")
