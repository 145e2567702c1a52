"""ReplicaCheck: replicas of a model on several ranks stay equal bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ReplicaFacts, RunRecord
from stayfinite.recover.fingerprint import fingerprint


class ReplicaCheck:
    """Is told the fingerprints of all ranks at every look at the state; all ranks are told the same.

    What DistributedDataParallel holds are replicas. Without it, weights that are still equal after an update are:
    ranks that train on their own for a while, or hold parts of one model, are not equal then.
    """

    def __init__(self, models: Iterable[nn.Module], parameters: Iterable[Tensor]) -> None:
        wrappers = [m for model in models for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self._parameters = (
            [p for wrapper in wrappers for p in wrapper._module_parameters] if wrappers else parameters
        )
        self.are_replicas: bool | None = True if wrappers else None  # None: nobody has looked yet
        self._apart = False

    def fingerprint(self) -> int:
        """Of this rank's weights as they are now."""
        return fingerprint(self._parameters)

    def look(self, step: int, fingerprints: Sequence[int]) -> FailedStep | None:
        """The ranks' weights were compared; what a rule is to be asked about, the first time they differ."""
        equal = len(set(fingerprints)) == 1
        if self.are_replicas is None and step > 0:
            self.are_replicas = equal
        news = not equal and bool(self.are_replicas) and not self._apart
        self._apart = not equal and bool(self.are_replicas)
        if not news:
            return None
        usual = Counter(fingerprints).most_common(1)[0][0]  # of as many of each: that of the lower rank
        replicas = tuple(ReplicaFacts(rank, equal=own == usual) for rank, own in enumerate(fingerprints))
        first = next(replica.rank for replica in replicas if not replica.equal)
        run = RunRecord(replicas=replicas)
        return FailedStep(step, "state", "parameter", run, reproduced=None, rank=first)
