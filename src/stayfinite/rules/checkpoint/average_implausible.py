"""CKP019: an average that cannot be an average of these weights."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor

_FEWEST = 4


class AverageImplausible(Rule[Checkpoint]):
    """The averaged copy (EMA, SWA) cannot be an average of the weights beside it.

    ## What it finds
    An average with another shape than its weight (error); an average that shares its memory with the weights, or
    equals them bit for bit in every tensor although the run is past step 0 (warning: it never averaged anything).

    ## Why it is bad
    The average is what gets evaluated and published. One that is the weights themselves gives none of its benefit,
    and one of another shape belongs to another model.

    ## Example
        ema = dict(model.state_dict())        # not a copy: the same tensors

    ## The fix
    Make the average from `copy.deepcopy(model)` (or `detach().clone()`), and update it after each applied step.

    ## The popular fix that does not work
    A decay closer to 1: it changes nothing for tensors that are the weights themselves.

    ## References
    torch.optim.swa_utils.AveragedModel
    """

    code = "CKP019"
    name = "average-implausible"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        weights = {_plain(t.key): t for t in subject.of_kind(Kind.WEIGHTS, Kind.BUFFERS)}
        pairs = [
            (average, weights[_plain(average.key)])
            for average in subject.of_kind(Kind.AVERAGE)
            if _plain(average.key) in weights
        ]
        for average, weight in pairs:
            if average.shape != weight.shape:
                yield self.finding(
                    f"{average.name} has shape {list(average.shape)} and {weight.name} has {list(weight.shape)}",
                    fix="the average belongs to another model; start it again from these weights",
                    evidence={"average": average.name, "shapes": [list(average.shape), list(weight.shape)]},
                    file=average.file,
                    severity=Severity.ERROR,
                    cause="CHECKPOINT_CORRUPT",
                )
        if subject.step:
            yield from self._shared(subject)
            yield from self._equal(subject, pairs)

    def _shared(self, subject: Checkpoint) -> Iterator[Finding]:
        """Tied across the border between weights and average: the same memory under two names."""
        shared = [
            (tensor, name)
            for tensor in subject.of_kind(Kind.WEIGHTS, Kind.AVERAGE)
            for name, kind in tensor.aliases
            if {kind, tensor.kind} == {Kind.WEIGHTS, Kind.AVERAGE} and tensor.floating
        ]
        if shared:
            tensor, name = shared[0]
            yield self.finding(
                f"{len(shared)} averaged tensors are the weights themselves, not copies ({name} and {tensor.name})",
                fix="build the average from copies: copy.deepcopy(model) or tensor.detach().clone()",
                evidence={"tensor": tensor.name, "same_as": name, "shared": len(shared)},
                file=tensor.file,
            )

    def _equal(self, subject: Checkpoint, pairs: list[tuple[Tensor, Tensor]]) -> Iterator[Finding]:
        telling = [(a, w) for a, w in pairs if w.floating and w.numel > 1 and w.kind is Kind.WEIGHTS]
        if len(telling) >= _FEWEST and all(_same_range(average, weight) for average, weight in telling):
            yield self.finding(
                f"the average equals the weights in all {len(telling)} tensors at step {subject.step}: it was copied, "
                "not averaged",
                fix="call the update of the average after each applied step",
                evidence={"tensors": len(telling), "step": subject.step},
                file=telling[0][0].file,
            )


def _plain(key: str) -> str:
    """Without what wrappers put in front of a name."""
    for prefix in ("module.", "_orig_mod.", "model."):
        key = key.removeprefix(prefix)
    return key


def _same_range(one: Tensor, other: Tensor) -> bool:
    a, b = one.statistics, other.statistics
    if a is None or b is None or a.bad or b.bad or one.dtype != other.dtype:
        return False
    return (a.minimum, a.maximum) == (b.minimum, b.maximum)
