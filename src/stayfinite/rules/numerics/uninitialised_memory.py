"""NUM016: memory that was read before anything was written to it."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, source_of, span, told


class UninitialisedMemory(Rule[FailedStep]):
    """A tensor was used that nobody ever initialised.

    ## What it finds
    Values read from `torch.empty`, `empty_like`, `to_empty` and the like before anything was written; parameters
    or buffers that are not finite, or beyond 1e20, before the first optimizer step and not because of a loaded
    file.

    ## Why it is bad
    It holds whatever was in memory: often zeros (and the run looks fine), sometimes 1e30 or NaN. The failure comes
    and goes with the allocator.

    ## Example
    A model built on the meta device, `to_empty()`, then a checkpoint that lacks the non-persistent buffer
    `inv_freq`

    ## The fix
    Initialise explicitly after `to_empty` (`reset_parameters()`, the module's own init) and compare the loaded
    keys with the buffers. `torch.use_deterministic_algorithms(True)` fills such memory with NaN, so that it is
    found at once.

    ## The popular fix that does not work
    Running again, or `load_state_dict(strict=False)`: the message is gone, the garbage stays.

    ## References
    huggingface/transformers#45902
    """

    code = "NUM016"
    name = "uninitialised-memory"
    cause = "UNINITIALIZED_MEMORY"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.UNINITIALISED):
            shown = born.birth.birth
            yield self.finding(
                f"{shown.numel} values of {shown.call or shown.op} were read before anything was written to them",
                fix="initialise it: torch.zeros, nn.init, or reset_parameters() after to_empty()",
                **told(born, nan=shown.nan, inf=shown.inf),
            )
        trained = subject.step > 0 or any(optimizer.steps for optimizer in subject.run.optimizers)
        if trained or any(load.nonfinite or load.enormous for load in subject.run.loads):
            return
        for born in judged(subject, Kind.CAME_IN, Kind.ABSURD_PARAMETER):
            held = born.how.operand
            if held is None or held.origin not in ("parameter", "buffer"):
                continue
            if born.how.kind is Kind.ABSURD_PARAMETER or held.summary.nan:
                what = f"{held.summary.nan} NaN" if held.summary.nan else f"absurd values ({span(held)})"
                yield self.finding(
                    f"{source_of(held)} holds {what} before the first step",
                    fix="initialise it explicitly (nn.init, reset_parameters() after to_empty()), and check what the "
                    "checkpoint lacks",
                    **told(born),
                )
