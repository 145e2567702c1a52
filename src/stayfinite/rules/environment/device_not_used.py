"""ENV002: an accelerator that torch cannot use."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.environment import Environment


class DeviceNotUsed(Rule[Environment]):
    """There is an accelerator, or a torch built for one, and torch sees none.

    ## What it finds
    A torch that was built for CUDA or ROCm and finds no device; a torch for the CPU on a machine with an NVIDIA driver.

    ## Why it is bad
    Scripts with `"cuda" if torch.cuda.is_available() else "cpu"` go on without a word, a hundred times slower, and in
    another precision: autocast for the CPU is not that of CUDA.

    ## Example
    `pip install torch` from an index that has CPU wheels only

    ## The fix
    Install the build for the driver, and check CUDA_VISIBLE_DEVICES.

    ## The popular fix that does not work
    Reinstalling the same wheel.

    ## References
    pytorch.org/get-started
    """

    code = "ENV002"
    name = "device-not-used"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Environment) -> Iterator[Finding]:
        if subject.torch is None or subject.devices:
            return
        hidden = subject.variables.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return  # hidden on purpose
        if subject.build.startswith(("cuda", "rocm")) and subject.driver:
            message = (
                f"torch {subject.torch} is built for {subject.build} and finds no device beside the driver"
            )
        elif subject.build == "cpu" and subject.driver:
            message = f"an NVIDIA driver is loaded, and torch {subject.torch} is built for the CPU only"
        else:
            return
        yield self.finding(
            message,
            fix="install the build of torch for this driver, and check CUDA_VISIBLE_DEVICES",
            evidence={"torch": subject.torch, "build": subject.build, "driver": subject.driver},
        )
