"""SRC019: gradients clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import before, exclusive, implied, together
from stayfinite.rules.source.phrases import at


class ClipBeforeUnscale(Rule[SourceFile]):
    """Gradients are clipped while they are still multiplied by the loss scale.

    ## What it finds
    `clip_grad_norm_` between `scaler.scale(loss).backward()` and `scaler.step(optimizer)` without a
    `scaler.unscale_(optimizer)` before it on every way that leads there.

    ## Why it is bad
    The norm is 65536 times too large, so every step is clipped to almost nothing: a flat learning curve
    without any error message.

    ## Example
    `scaler.scale(loss).backward(); clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer)`

    ## The fix
    `scaler.unscale_(optimizer)` after backward and before clipping, in every branch.

    ## The popular fix that does not work
    A higher learning rate or a higher max_norm: both are right for one loss scale only, and the scale
    moves.

    ## References
    Lightning-AI/pytorch-lightning#9599; torch.amp examples, "Working with Scaled Gradients"
    """

    code = "SRC019"
    name = "clip-of-scaled-gradients"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            for step in facts.events:
                if step.what != "step" or not step.scaled:
                    continue
                for clip in before(facts, step, "clip"):
                    if clip.loop != step.loop or exclusive(clip, step):
                        continue
                    backward = next(
                        (b for b in before(facts, clip, "backward") if not exclusive(b, clip)), None
                    )
                    if backward is None or not backward.scaled:
                        continue
                    between = [
                        u
                        for u in before(facts, clip, "unscale")
                        if facts.events.index(u) > facts.events.index(backward)
                    ]
                    if any(together(u, clip) and implied(u, clip, step, backward) for u in between):
                        continue
                    sometimes = (
                        f" (the one at line {between[0].line} stands behind a test)" if between else ""
                    )
                    yield self.finding(
                        f"clipping without scaler.unscale_ before it{sometimes}: the norm "
                        "is that of scaled gradients",
                        fix="call scaler.unscale_(optimizer) after backward and before "
                        "clipping, in every branch",
                        evidence={"backward": backward.line, "step": step.line},
                        **at(subject, clip),
                    )
                    break
