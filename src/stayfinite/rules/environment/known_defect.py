"""ENV001: a version that is known for NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.environment import Environment

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of torch between two versions (the second excluded), on one kind of device."""

    first: Version
    fixed: Version
    device: str
    what: str
    cure: str
    source: str
    capability: int | None = None
    """Only on devices of this major compute capability."""


DEFECTS = (
    Defect(
        (2, 5, 0),
        (2, 5, 1),
        "cuda",
        "attention through cuDNN, the default there, gives NaN gradients or a loss that explodes",
        "use torch 2.5.1 or later, or torch.backends.cuda.enable_cudnn_sdp(False)",
        "pytorch/pytorch#139298, huggingface/diffusers#9768",
    ),
    Defect(
        (2, 11, 0),
        (2, 14, 0),
        "cuda",
        "attention with a mask through cuDNN gives NaN gradients for lengths of 64 mod 128",
        "torch.backends.cuda.enable_cudnn_sdp(False), or is_causal=True instead of a mask",
        "pytorch/pytorch#196678, huggingface/trl#7181",
        capability=9,
    ),
    Defect(
        (2, 2, 0),
        (2, 5, 0),
        "cuda",
        "memory-efficient attention gives NaN where query and key differ in length",
        "use torch 2.5 or later, or torch.backends.cuda.enable_mem_efficient_sdp(False)",
        "pytorch/pytorch#124877",
    ),
    Defect(
        (2, 10, 0),
        (2, 11, 0),
        "mps",
        "batched attention gives NaN for all but the first sequence of a batch",
        "use torch 2.9, or run the model on the CPU to compare",
        "pytorch/pytorch#182726",
    ),
)
"""Reported with a way to reproduce them, or confirmed by the people who fixed them. Where no fixed version is known,
the range ends behind the last version it was seen in."""


class KnownDefect(Rule[Environment]):
    """The installed torch has a known defect that gives NaN on this kind of device.

    ## What it finds
    Versions of torch for which a defect was reported with a reproduction, on the kind of device that is here. It says
    what triggers the defect, and where it was reported; whether a model triggers it is not known.

    ## Why it is bad
    Every op of the model is right and its result is not. Nothing in the script explains the failure, and another
    version or backend does not show it.

    ## Example
    torch 2.5.0 on an H100: attention through cuDNN

    ## The fix
    Another version, or the switch that turns the backend off.

    ## The popular fix that does not work
    A lower learning rate.

    ## References
    named in each finding
    """

    code = "ENV001"
    name = "version-known-for-nan"
    cause = "LIB_REGRESSION"
    severity = Severity.WARNING

    def check(self, subject: Environment) -> Iterator[Finding]:
        version = subject.torch_version()
        if version is None:
            return
        for defect in DEFECTS:
            here = [
                device
                for device in subject.devices
                if device.kind == defect.device
                and (defect.capability is None or (device.capability or (0, 0))[0] == defect.capability)
            ]
            if here and defect.first <= version < defect.fixed:
                yield self.finding(
                    f"torch {subject.torch} on {here[0].name}: {defect.what} ({defect.source})",
                    fix=defect.cure,
                    evidence={"torch": subject.torch, "device": here[0].name, "source": defect.source},
                )
