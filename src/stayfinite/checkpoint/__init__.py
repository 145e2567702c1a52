"""The checkpoint doctor: verify one, find the last good of many, compare, quarantine, repair.

from stayfinite.checkpoint import verify
verdict = verify("runs/a/last.pt")        # a path, or a state dict in memory
if not verdict.healthy: print(verdict.findings[0].message)
"""

from stayfinite.checkpoint.verify import CheckpointVerdict, verify
from stayfinite.readers.checkpoint import Unreadable

__all__ = ["CheckpointVerdict", "Unreadable", "verify"]
