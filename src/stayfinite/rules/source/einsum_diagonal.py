"""SRC027: an einsum with a repeated index on one operand, which takes its diagonal."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class EinsumTakesTheDiagonal(Rule[SourceFile]):
    """An einsum repeats an index on one operand, which takes that operand's diagonal only.

    ## What it finds
    `torch.einsum('bnn,bnchw->bnchw', m, x)`: an index twice on one of several operands. A single operand
    (`'bii->bi'`, a trace) is taken to be meant.

    ## Why it is bad
    The product uses the n diagonal entries of a matrix and ignores the rest. Shapes fit, nothing complains;
    a mixing matrix that should keep the size of a signal scales it instead, block after block.

    ## Example
    `torch.einsum("bnn,bnchw->bnchw", mixing, x)`

    ## The fix
    Two different letters for rows and columns: `torch.einsum("bnm,bmchw->bnchw", mixing, x)`.

    ## The popular fix that does not work
    Normalising the matrix more often: the other entries are still not used.

    ## References
    torch.einsum documentation, "taking diagonals"
    """

    code = "SRC027"
    name = "einsum-takes-the-diagonal"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("einsum"):
            equation = operation.operands[0].const if operation.operands else None
            if not isinstance(equation, str):
                continue
            inputs = equation.partition("->")[0].replace(" ", "").split(",")
            if len(inputs) < 2:
                continue
            for term in inputs:
                letters = term.replace(".", "")
                repeated = sorted({letter for letter in letters if letters.count(letter) > 1})
                if repeated:
                    yield self.finding(
                        f"einsum {equation!r} takes the diagonal of the operand {term!r} "
                        f"(index {repeated[0]!r} twice)",
                        fix="give rows and columns two different letters, for example 'bnm,bmchw->bnchw'",
                        evidence={**evidence(operation), "equation": equation, "repeated": repeated},
                        **at(subject, operation),
                    )
                    break
