"""CKP005: a rate, a loss or another number of the state that is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.nonfinite import bad_tensors, describe, evidence

_FIX = "take this part of the state from a healthy checkpoint"


class NonfiniteNumber(Rule[Checkpoint]):
    """A learning rate, a loss or another single number in the checkpoint is NaN or infinite.

    ## What it finds
    Rates and options of the optimizer, numbers of the scheduler, and NaN among the other values (a stored loss, a
    best score). Infinity as "nothing better seen yet" (`best`, `mode_worse`) is left alone.

    ## Why it is bad
    A NaN learning rate makes every weight NaN in one step. A NaN in `best` makes every comparison false: nothing is
    ever saved as better, and a plateau scheduler never acts. A NaN loss says that the run had failed before it was
    saved.

    ## Example
        torch.save({"model": ..., "loss": loss.item()}, path)      # loss is nan

    ## The fix
    Take this part of the state from a healthy checkpoint, or set it by hand before the run goes on.

    ## The popular fix that does not work
    `if loss < best` as a gate before saving: it is False for NaN, but so is every later comparison with a NaN best.

    ## References
    pytorch ReduceLROnPlateau: `best` starts at inf and is compared with every metric
    """

    code = "CKP005"
    name = "nonfinite-number"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for optimizer in subject.optimizers:
            for place, group in enumerate(optimizer.groups):
                numbers = {
                    "lr": group.lr,
                    "initial_lr": group.initial_lr,
                    "max_lr": group.max_lr,
                    **group.options,
                }
                for key, value in numbers.items():
                    if value is not None and not math.isfinite(value):
                        yield self._number(
                            f"{optimizer.name}.param_groups.{place}.{key}", value, optimizer.file
                        )
        for number in subject.numbers:
            harmless = number.kind in (Kind.OTHER, Kind.RANDOM, Kind.WEIGHTS, Kind.BUFFERS)
            best_so_far = any(
                word in number.name.rpartition(".")[2].lower() for word in ("best", "worse", "score")
            )
            if math.isnan(number.value) or not (harmless or best_so_far):
                level = Severity.WARNING if harmless else Severity.ERROR
                yield self._number(number.name, number.value, number.file, level)
        for tensor in bad_tensors(subject, Kind.SCALER, Kind.SCHEDULER, Kind.OTHER, Kind.RANDOM):
            if tensor.statistics is not None and (tensor.statistics.nan or tensor.kind is Kind.SCALER):
                level = Severity.WARNING if tensor.kind in (Kind.OTHER, Kind.RANDOM) else Severity.ERROR
                message = f"{tensor.name} ({tensor.kind.value}): {describe(tensor)}"
                yield self.finding(
                    message, fix=_FIX, evidence=evidence(tensor), file=tensor.file, severity=level
                )

    def _number(self, name: str, value: float, file: str, level: Severity = Severity.ERROR) -> Finding:
        return self.finding(
            f"{name} is {value}", fix=_FIX, evidence={"name": name, "value": value}, file=file, severity=level
        )
