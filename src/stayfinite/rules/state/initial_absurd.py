"""STA002: a parameter or buffer has an absurd magnitude before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class InitialAbsurd(Rule[Setup]):
    """A parameter or buffer holds values beyond 1e30 before the first step.

    ## What it finds
    Finite values above 1e30 in parameters, or in buffers where they are no mask (values near the dtype's own
    limit, such as `finfo.min`, are taken for masks).

    ## Why it is bad
    Nothing trained has such weights: it is memory that nobody initialised. Squares and sums of it overflow
    float32, so the first loss is Inf or NaN.

    ## Example
    `nn.Parameter(torch.empty(n))` without an init call.

    ## The fix
    Initialise the tensor: `torch.zeros`, `nn.init.normal_`, or the module's `reset_parameters()`.

    ## The popular fix that does not work
    Running again: fresh memory is often zero, so the failure hides until the allocator hands out a used block.

    ## References
    huggingface/transformers#45902
    """

    code = "STA002"
    name = "initial-absurd"
    cause = "UNINITIALIZED_MEMORY"
    severity = Severity.ERROR

    def check(self, subject: Setup) -> Iterator[Finding]:
        for held in subject.tensors:
            tensor = held.summary
            if held.absurd:
                yield self.finding(
                    f"{held.kind} {tensor.name} holds {held.absurd} values beyond 1e30 before the first step "
                    f"(range {tensor.min:.3g} to {tensor.max:.3g}): "
                    + ("it was loaded so" if held.loaded else "it looks uninitialised"),
                    fix="load an earlier checkpoint, or a fresh copy of this one, that `stayfinite scan` calls healthy"
                    if held.loaded
                    else "initialise it explicitly (torch.zeros, nn.init, or the module's reset_parameters())",
                    cause="CHECKPOINT_CORRUPT" if held.loaded else None,
                    evidence={"kind": held.kind, "absurd": held.absurd, **tensor.to_json()},
                )
