"""SRC020: gradients clipped after the optimizer has used them."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import before, exclusive
from stayfinite.rules.source.phrases import at


class ClipAfterStep(Rule[SourceFile]):
    """Gradients are clipped after the optimizer has already used them.

    ## What it finds
    `optimizer.step()` followed by `clip_grad_norm_` in the same loop, with no backward between them and no
    clip before the step.

    ## Why it is bad
    The clip has no effect: the update was made with the raw gradients, and the next zero_grad throws the
    clipped ones away.

    ## Example
    `loss.backward(); optimizer.step(); clip_grad_norm_(model.parameters(), 1.0)`

    ## The fix
    Clip between backward and step.

    ## The popular fix that does not work
    A smaller max_norm. It is applied to gradients nobody reads.

    ## References
    torch.nn.utils.clip_grad_norm_ documentation
    """

    code = "SRC020"
    name = "clip-after-step"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            for clip in facts.events:
                if clip.what != "clip" or not clip.loop:
                    continue
                last = next(
                    (
                        e
                        for e in before(facts, clip, "step", "backward", "clip")
                        if e.loop == clip.loop and not exclusive(e, clip)
                    ),
                    None,
                )
                if last is None or last.what != "step":
                    continue
                if any(e.what == "clip" and e.loop == clip.loop for e in before(facts, last, "clip")):
                    continue
                later = facts.events[facts.events.index(clip) + 1 :]
                if any(e.what in ("backward", "step") and e.loop == clip.loop for e in later):
                    continue
                yield self.finding(
                    f"clipping after the optimizer's step (line {last.line}) has no effect",
                    fix="clip between backward and step",
                    evidence={"step": last.line},
                    **at(subject, clip),
                )
