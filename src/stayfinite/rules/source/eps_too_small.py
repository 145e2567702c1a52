"""SRC004: an eps so small that the gradient at zero is enormous."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at


class EpsTooSmall(Rule[SourceFile]):
    """An eps is so small that it protects nothing: the gradient at zero is enormous in every precision.

    ## What it finds
    A number named eps below 1e-15 (but above 0), as a default, a setting or a keyword, in a file that uses
    torch. The limit can be set in pyproject.toml: `[tool.stayfinite] eps-floor = 1e-15`.

    ## Why it is bad
    1/(x + eps) and rsqrt(x + eps) have gradients of 1/eps**2 and 0.5 * eps**-1.5 at zero: for 1e-20 that is
    1e40, beyond float32, and 5e29. In float16 and in sums with values above 1e-12 the eps is lost
    completely.

    ## Example
    `torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-20)`: the gradient at x = 0 is 5e10 and more.

    ## The fix
    Use the eps of torch's own layers: 1e-5 (LayerNorm, BatchNorm), 1e-6 (RMSNorm in most models), 1e-12
    (F.normalize) at the very least.

    ## The popular fix that does not work
    An even smaller eps, so that it "does not change the result". What it changes is the gradient at zero.

    ## References
    torch.nn.LayerNorm (eps=1e-5), torch.nn.functional.normalize (eps=1e-12); RMSNorm gradient measured in
    this project: eps 1e-20 gives 5e10
    """

    code = "SRC004"
    name = "eps-too-small"
    cause = "EPS_UNDERFLOW"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        floor = subject.settings.get("eps-floor", 1e-15)
        for constant in subject.constants:
            if 0 < constant.value < floor:
                yield self.finding(
                    f"{constant.name} = {constant.value:g} is too small to protect a division or a root: "
                    "the gradient at zero is of the order of its inverse",
                    fix="use 1e-6 (1e-5 in half precision), as torch's own normalisation layers do",
                    evidence={"eps": constant.value, "floor": floor, "role": constant.role},
                    **at(subject, constant),
                )
