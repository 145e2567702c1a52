"""SRC037: nansum or nanmean over what a network computed."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class NanHiddenFromTheLoss(Rule[SourceFile]):
    """nansum or nanmean over a network's output hides NaN in the forward and lets it back in with the gradient.

    ## What it finds
    `nansum`, `nanmean` of an expression through which gradients of a network flow.

    ## Why it is bad
    The forward leaves NaN out. The backward multiplies zero with the NaN that stands beside it in the
    product, and the whole gradient is NaN.

    ## Example
    `(theta * dz * mask).nansum(-1)` with NaN in dz

    ## The fix
    Replace NaN in the constant before multiplying: `dz = torch.nan_to_num(dz)`, then an ordinary sum.

    ## The popular fix that does not work
    nansum itself, which is why it is here.

    ## References
    ai2cm/ace#949
    """

    code = "SRC037"
    name = "nan-hidden-from-the-loss"
    cause = "WHERE_UNSAFE_BRANCH"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("nansum", "nanmean"):
            value = operation.operands[0] if operation.operands else None
            if value is None or operation.no_grad or not value.grad:
                continue
            yield self.finding(
                f"{operation.name} over a network's output: the NaN it leaves out comes back in the gradient",
                fix="replace NaN in the inputs before they meet the network's output "
                "(torch.nan_to_num, torch.where)",
                evidence=evidence(operation),
                **at(subject, operation),
            )
