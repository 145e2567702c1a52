"""CKP016: a checkpoint in several files, one of which is not there."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint
from stayfinite.rules.checkpoint.problems import report


class ShardMissing(Rule[Checkpoint]):
    """A file of a sharded checkpoint is missing, or a tensor that the index lists is in none of them.

    ## What it finds
    Shards named in an index or in `.metadata` that are not in the folder, gaps in "3 of 8" and in rank numbers, and
    tensors that the index lists but no shard holds.

    ## Why it is bad
    A loader that is not strict fills what is missing with fresh random values. The model works, a little worse.

    ## Example
    `model-00002-of-00004.safetensors` was not copied.

    ## The fix
    Copy the missing file, or take another checkpoint. A save that never finished has to be deleted.

    ## The popular fix that does not work
    `strict=False`: it makes the message go away, not the hole.

    ## References
    Hugging Face "Big models": sharded checkpoints; torch.distributed.checkpoint
    """

    code = "CKP016"
    name = "shard-missing"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        yield from report(self, subject, "copy the missing file, or take another checkpoint", "missing-shard")
