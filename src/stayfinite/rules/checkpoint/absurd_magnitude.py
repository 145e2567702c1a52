"""CKP009: magnitudes that no training gives: memory that nobody initialised."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor

_ABSURD = 1e10
_TIMES_OTHERS = 1e6
_TINY = 1e-30


class AbsurdMagnitude(Rule[Checkpoint]):
    """A tensor is a million times larger than the others (1e30), or smaller than 1e-30 throughout: not initialised.

    ## What it finds
    Weights, buffers and averages whose largest magnitude is above 1e10 and a million times the median of the others;
    and weights that are not zero but below 1e-30 everywhere.

    ## Why it is bad
    `torch.empty`, `to_empty()` from the meta device and a buffer left out of the state dict hold whatever was in
    memory. It may look harmless on one machine (zeros) and overflow on the next.

    ## Example
        model.to_empty(device="cpu")          # and a buffer that reset_parameters() does not fill

    ## The fix
    Initialise the tensor explicitly, or load it from a checkpoint that has it; then save again.

    ## The popular fix that does not work
    Running again: other memory, another result, the same mistake.

    ## References
    torch.nn.Module.to_empty, torch.empty
    """

    code = "CKP009"
    name = "absurd-magnitude"
    cause = "UNINITIALIZED_MEMORY"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        tensors = [
            tensor
            for tensor in subject.of_kind(Kind.WEIGHTS, Kind.BUFFERS, Kind.AVERAGE)
            if tensor.floating and tensor.statistics is not None and tensor.numel and not tensor.additive_mask
        ]
        sizes = [tensor.statistics.largest for tensor in tensors if tensor.statistics is not None]
        usual = median([size for size in sizes if size > 0] or [1.0])
        for tensor in tensors:
            stats = tensor.statistics
            if stats is None or stats.bad:
                continue
            if stats.largest > max(_ABSURD, _TIMES_OTHERS * usual):
                yield self._report(tensor, stats.largest, usual, f"reaches {stats.largest:.3g}")
            elif 0 < stats.largest < _TINY < usual and tensor.kind is Kind.WEIGHTS and len(tensor.shape) >= 2:
                yield self._report(tensor, stats.largest, usual, f"is not zero but below {stats.largest:.3g}")

    def _report(self, tensor: Tensor, largest: float, usual: float, what: str) -> Finding:
        return self.finding(
            f"{tensor.name} {what}; the largest value of the other tensors is {usual:.3g} (median): "
            "this looks like memory that was never initialised",
            fix="initialise this tensor explicitly, or take it from a checkpoint that has it",
            evidence={
                "tensor": tensor.name,
                "largest": largest,
                "median_of_others": usual,
                "kind": tensor.kind.value,
            },
            file=tensor.file,
        )
