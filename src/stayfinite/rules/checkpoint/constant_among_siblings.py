"""CKP008: a weight matrix that is one constant while the same matrix of other layers is not."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.siblings import siblings

_SMALLEST = 16
_FEWEST = 3


class ConstantAmongSiblings(Rule[Checkpoint]):
    """A weight matrix is all zero (or one constant) although the same matrix in the other layers is not.

    ## What it finds
    Matrices of at least 16 values that are constant, where at least three layers have this matrix and most of the
    others vary. Biases, norms and layers that all start at zero on purpose are left alone.

    ## Why it is bad
    A layer of zeros passes nothing on and, behind a multiplication, gets no gradient. It comes from a failed load
    (`strict=False` with a renamed key), a shard that was not gathered, or a `nan_to_num` repair.

    ## Example
    `layers.7.mlp.weight` is 0 everywhere; the other 23 have a deviation of 0.02.

    ## The fix
    Load it from a checkpoint in which it is not constant, and check the messages of `load_state_dict`.

    ## The popular fix that does not work
    Training on: a layer of exact zeros stays where it is when its gradient is zero too.

    ## References
    torch.nn.Module.load_state_dict, argument strict
    """

    code = "CKP008"
    name = "constant-among-siblings"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for family in siblings(subject, Kind.WEIGHTS, Kind.AVERAGE).values():
            matrices = [tensor for tensor in family if len(tensor.shape) >= 2 and tensor.numel >= _SMALLEST]
            constant = [t for t in matrices if t.statistics is not None and t.statistics.constant]
            if len(matrices) < _FEWEST or not constant or len(constant) * 4 > len(matrices):
                continue
            for tensor in constant:
                value = tensor.statistics.minimum if tensor.statistics is not None else None
                others = len(matrices) - len(constant)
                yield self.finding(
                    f"{tensor.name} is {value:g} everywhere; the same matrix of {others} other layers varies",
                    fix="load it from another checkpoint and look for keys that did not match when it was loaded",
                    evidence={
                        "tensor": tensor.name,
                        "value": value,
                        "siblings": others,
                        "shape": list(tensor.shape),
                    },
                    file=tensor.file,
                )
