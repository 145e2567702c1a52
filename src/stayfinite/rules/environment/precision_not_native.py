"""ENV003: a precision that the device does not have."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.environment import Environment


class PrecisionNotNative(Rule[Environment]):
    """The device has no bfloat16 of its own, so half precision means float16 here.

    ## What it finds
    CUDA devices before Ampere (compute capability below 8.0), which emulate bfloat16 slowly or refuse it.

    ## Why it is bad
    A configuration with bf16 runs many times slower there, or falls back to float16, whose range ends at 65504 and
    which needs a loss scaler. Results from a newer machine do not carry over.

    ## Example
    A V100 or T4 with `bf16: true`

    ## The fix
    float16 with a GradScaler, or float32, on this device.

    ## The popular fix that does not work
    float16 without a scaler: small gradients become 0 and large ones Inf.

    ## References
    torch.cuda.is_bf16_supported
    """

    code = "ENV003"
    name = "bfloat16-not-native"
    cause = "FP16_OVERFLOW"
    severity = Severity.INFO

    def check(self, subject: Environment) -> Iterator[Finding]:
        old = [device for device in subject.devices if device.bfloat16 is False]
        if old:
            yield self.finding(
                f"{old[0].name} (compute capability {'.'.join(map(str, old[0].capability or ()))}) has no bfloat16",
                fix="use float16 with a GradScaler, or float32",
                evidence={"device": old[0].name, "capability": list(old[0].capability or ())},
            )
