"""NUM016: memory that was read before anything was written to it."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at, births_by_weight, source_of, span, tensors


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
        loaded_bad = any(load.nonfinite for load in subject.loads)
        untrained = all(optimizer.steps == 0 for optimizer in subject.optimizers)
        for birth, weight in births_by_weight(subject):
            if birth.transition == "uninitialised":
                yield self.finding(
                    f"{birth.birth.numel} values of {birth.birth.call or birth.op} were read before anything was "
                    f"written to them",
                    fix="initialise it: torch.zeros, nn.init, or reset_parameters() after to_empty()",
                    evidence={"nan": birth.birth.nan, "inf": birth.birth.inf, "shape": birth.birth.numel},
                    confidence=0.97 * weight,
                    **at(birth),
                )
                continue
            if not untrained or loaded_bad:
                continue
            if birth.transition == "outside":
                held = next((o for o in (birth.output, *birth.operands) if o and not o.finite), None)
                if held is not None and held.origin in ("parameter", "buffer") and held.summary.nan:
                    yield self.finding(
                        f"{source_of(held)} holds {held.summary.nan} NaN before the first step",
                        fix="initialise it explicitly, after to_empty() above all, and check what the checkpoint lacks",
                        evidence={"inputs": tensors(held)},
                        confidence=0.85 * weight,
                        **at(birth),
                    )
            elif birth.transition == "finite->inf":
                for held in birth.operands:
                    if held.origin in ("parameter", "buffer") and 1e20 < (held.absmax or 0.0) < 3e38:
                        yield self.finding(
                            f"{source_of(held)} holds absurd values before the first step ({span(held)})",
                            fix="initialise it explicitly: torch.zeros, nn.init, or the module's reset_parameters()",
                            evidence={"inputs": tensors(held)},
                            confidence=0.88 * weight,
                            **at(birth),
                        )
