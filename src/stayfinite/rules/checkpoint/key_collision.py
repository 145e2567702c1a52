"""CKP017: one name for two tensors."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint
from stayfinite.rules.checkpoint.problems import report


class KeyCollision(Rule[Checkpoint]):
    """The same name is stored twice: which of the two values is loaded depends on the reader.

    ## What it finds
    A key twice in one dictionary or header, a member twice in an archive, a tensor in two shards, and members whose
    path leads outside the archive.

    ## Why it is bad
    One reader takes the first, another the last. A file can be made so that a scanner sees one tensor and the
    training another. In shards it means that files of two saves lie in one folder.

    ## Example
    `model-00001-of-00002` of the old run beside `model-00001-of-00003` of the new one.

    ## The fix
    Delete the files of the other save; save again. Do not trust a single file with doubled names.

    ## The popular fix that does not work
    Loading with a reader that does not complain.

    ## References
    safetensors format: duplicate keys are disallowed
    """

    code = "CKP017"
    name = "key-collision"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        fix = "remove the files of the other save, or write the checkpoint again; do not load it as it is"
        yield from report(self, subject, fix, "collision", "duplicate", "outside")
