"""STA001: a parameter or buffer is not finite before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class InitialNotFinite(Rule[Setup]):
    """A parameter holds NaN or Inf, or a buffer NaN, before the first step.

    ## What it finds
    Parameters with NaN or Inf and buffers with NaN when the guard is made. A buffer that holds only infinities is
    left alone: attention masks and running minima are made that way on purpose.

    ## Why it is bad
    Every forward pass that touches the value is NaN from step 0 on. No learning rate, clip or skip changes that.

    ## Example
    A model is built on the meta device, moved with `to_empty()`, and a checkpoint without its non-persistent
    buffers is loaded: those buffers keep whatever was in memory.

    ## The fix
    Initialise explicitly: call `reset_parameters()` (or the module's own init) after `to_empty()`, and load a
    checkpoint that `stayfinite scan` calls healthy.

    ## The popular fix that does not work
    `load_state_dict(strict=False)` hides the list of keys that were never filled; running again gives other
    garbage, which may look fine once.

    ## References
    huggingface/transformers#45902
    """

    code = "STA001"
    name = "initial-not-finite"
    cause = "UNINITIALIZED_MEMORY"
    severity = Severity.ERROR

    def check(self, subject: Setup) -> Iterator[Finding]:
        for held in subject.tensors:
            tensor = held.summary
            bad = tensor.nan + (tensor.inf if held.kind != "buffer" else 0)
            if bad:
                yield self.finding(
                    f"{held.kind} {tensor.name} holds {tensor.nan} NaN and {tensor.inf} Inf before the first step"
                    + (": it was loaded so" if held.loaded else ""),
                    fix="load an earlier checkpoint that `stayfinite scan` calls healthy"
                    if held.loaded
                    else "initialise it explicitly, or load it from a checkpoint that `stayfinite scan` calls healthy",
                    cause="CHECKPOINT_CORRUPT" if held.loaded else None,
                    evidence={"kind": held.kind, **tensor.to_json()},
                )
