"""SRC030: float16 autocast and a backward without a gradient scaler."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class Float16WithoutScaler(Rule[SourceFile]):
    """Training runs in float16 autocast, and nothing in the file scales the loss.

    ## What it finds
    `torch.autocast` with float16 (named, or by default on a GPU) in a file that calls backward and has no
    gradient scaler.

    ## Why it is bad
    Gradients below 6e-8 are zero in float16; without a scale much of a deep network gets none, and an
    overflow goes straight into the weights.

    ## Example
    `with torch.autocast("cuda"): loss = model(x)` followed by `loss.backward()`

    ## The fix
    `torch.amp.GradScaler`, or `dtype=torch.bfloat16`, which needs none. Name the dtype: the default differs
    between devices.

    ## The popular fix that does not work
    Multiplying the loss by a constant: the right one changes during training.

    ## References
    torch.amp documentation, "Typical Mixed Precision Training"
    """

    code = "SRC030"
    name = "autocast-without-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        backwards = [
            event
            for facts in subject.functions
            for event in facts.events
            if event.what == "backward" and not event.scaled and (event.loop or facts.name)
        ]
        if (
            subject.uses_scaler
            or not backwards
            or "accelerator" in subject.text.lower()
            or "deepspeed" in subject.text
        ):
            return
        for operation in subject.named("autocast"):
            enabled = operation.options.get("enabled")
            if operation.no_grad or (enabled is not None and enabled.const is False):
                continue
            given = [v for v in (*operation.operands, *operation.options.values()) if v.kind == "dtype"]
            device = (
                operation.operands[0].const if operation.operands else operation.options.get("device_type")
            )
            named = "dtype" in operation.options or len(operation.operands) > 1
            if given and given[0].const != "float16":
                continue
            if not given and (named or device not in (None, "cuda")):
                continue
            how = "float16" if given else "its default, float16 on a GPU"
            yield self.finding(
                f"autocast uses {how}, backward (line {backwards[0].line}) is not scaled",
                fix="add torch.amp.GradScaler, or name dtype=torch.bfloat16",
                evidence={**evidence(operation), "backward": backwards[0].line},
                **at(subject, operation),
            )
            break
