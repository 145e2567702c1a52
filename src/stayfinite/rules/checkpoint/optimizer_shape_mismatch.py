"""CKP015: optimizer state that does not belong to this model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor

_LIKE_THE_WEIGHT = ("exp_avg", "momentum_buffer")


class OptimizerShapeMismatch(Rule[Checkpoint]):
    """A moment has a shape that no weight of the model has: the optimizer belongs to another model.

    ## What it finds
    First moments and momentum buffers whose shapes do not occur among the weights, or occur more often than there
    are weights of this shape. Flattened and sharded state is left out.

    ## Why it is bad
    `optimizer.load_state_dict` does not compare shapes. The mistake shows at the first step as a shape error, or,
    where the shapes happen to fit, not at all: weights are moved by the moments of others.

    ## Example
    The head was replaced by one with 10 classes; the optimizer state still has 1000.

    ## The fix
    Drop the state of the replaced parameters, or start the optimizer anew.

    ## The popular fix that does not work
    Catching the error and going on without the optimizer state: then all the moments are gone, not one.

    ## References
    torch.optim.Optimizer.load_state_dict
    """

    code = "CKP015"
    name = "optimizer-shape-mismatch"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        if not subject.optimizers or any(optimizer.flat for optimizer in subject.optimizers):
            return
        weights = [t for t in subject.tensors if t.kind in (Kind.WEIGHTS, Kind.BUFFERS) and t.floating]
        if not weights:
            return
        available = Counter(tensor.shape for tensor in weights)
        available.update(tensor.shape for tensor in weights for _ in tensor.aliases)
        for role in _LIKE_THE_WEIGHT:
            moments = [t for t in subject.of_kind(Kind.OPTIMIZER) if t.role == role]
            unmatched: list[Tensor] = []
            left = available.copy()
            for moment in moments:
                left[moment.shape] -= 1
                if left[moment.shape] < 0:
                    unmatched.append(moment)
            if unmatched:
                yield self._report(unmatched, len(moments))

    def _report(self, unmatched: list[Tensor], total: int) -> Finding:
        first = unmatched[0]
        return self.finding(
            f"{first.name} has shape {list(first.shape)}, and the model has no weight of this shape left "
            f"({len(unmatched)} of {total} moments do not fit the weights)",
            fix="drop the state of parameters that were replaced, or start the optimizer anew",
            evidence={
                "tensor": first.name,
                "shape": list(first.shape),
                "unmatched": len(unmatched),
                "of": total,
            },
            file=first.file,
        )
