"""ENV005: determinism flags that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.environment import Environment


class FlagsContradict(Rule[Environment]):
    """Determinism was asked for, and another setting takes it away.

    ## What it finds
    `torch.use_deterministic_algorithms(True)` on CUDA without CUBLAS_WORKSPACE_CONFIG (matrix products then raise), or
    together with `cudnn.benchmark` (which picks kernels by their speed on the day).

    ## Why it is bad
    A failure that is to be reproduced is not, or the run ends with an error that has nothing to do with it.

    ## Example
    `RuntimeError: Deterministic behavior was enabled with ... CUBLAS_WORKSPACE_CONFIG=:4096:8`

    ## The fix
    Export CUBLAS_WORKSPACE_CONFIG=:4096:8 before the process starts, and leave cudnn.benchmark off.

    ## The popular fix that does not work
    A seed: it does not order the additions of a kernel.

    ## References
    pytorch.org/docs/stable/notes/randomness.html
    """

    code = "ENV005"
    name = "determinism-flags-contradict"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Environment) -> Iterator[Finding]:
        if not subject.deterministic:
            return
        if "cuda" in subject.device_kinds() and "CUBLAS_WORKSPACE_CONFIG" not in subject.variables:
            yield self.finding(
                "deterministic algorithms are asked for, and CUBLAS_WORKSPACE_CONFIG is not set",
                fix="export CUBLAS_WORKSPACE_CONFIG=:4096:8 before the process starts",
                evidence={"variables": subject.variables},
            )
        if subject.cudnn_benchmark:
            yield self.finding(
                "deterministic algorithms are asked for, and cudnn.benchmark picks kernels by their speed",
                fix="torch.backends.cudnn.benchmark = False",
                evidence={"cudnn_benchmark": True},
            )
