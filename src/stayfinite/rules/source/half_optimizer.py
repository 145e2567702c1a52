"""SRC029: an optimizer on weights that were turned into half precision."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence

OPTIMIZERS = ("Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "SGD")


class HalfWeightsInOptimizer(Rule[SourceFile]):
    """An optimizer is built on weights that were turned into half precision as a whole.

    ## What it finds
    `.half()`, `.bfloat16()` or `.to(torch.float16 / torch.bfloat16)` on a model whose parameters then go to
    an optimizer of torch.optim.

    ## Why it is bad
    float16 with Adam: eps 1e-8 is zero and the second moment underflows, so the first step computes m/0.
    bfloat16 keeps 8 bits: an update below 1/256 of a weight is lost completely.

    ## Example
    `net = net.half(); opt = torch.optim.Adam(net.parameters())`

    ## The fix
    Keep float32 weights and use `torch.autocast` (with a GradScaler for float16), or an optimizer that
    keeps a float32 copy.

    ## The popular fix that does not work
    `eps=1e-4`: it trains, with a different optimizer, and most updates are still rounded away.

    ## References
    afiaka87/glide-finetune#5, meta-pytorch/torchtune#2254
    """

    code = "SRC029"
    name = "half-weights-in-optimizer"
    cause = "PURE_LOWP_OPTIMIZER"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.operations:
            if operation.name not in OPTIMIZERS or not operation.operands:
                continue
            given = operation.operands[0]
            if given.dtype not in ("float16", "bfloat16") or given.kind != "parameters":
                continue
            adaptive = operation.name != "SGD"
            place = given.made or operation
            half = given.dtype == "float16"
            if half and adaptive:
                message = (
                    f"{operation.name} (line {operation.line}) on float16 weights: its eps is 0 "
                    "there and its moments underflow"
                )
            else:
                message = (
                    f"{operation.name} (line {operation.line}) on {given.dtype} weights: small "
                    "updates are rounded away"
                )
            yield self.finding(
                message,
                fix="keep float32 weights and use torch.autocast (float16 needs a GradScaler too)",
                evidence={**evidence(place), "optimizer": operation.name, "optimizer_line": operation.line},
                severity=self.severity if half and adaptive else Severity.WARNING,
                cause=self.cause if half else "BF16_PRECISION",
                **at(subject, place),
            )
