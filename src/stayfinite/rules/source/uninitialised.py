"""SRC028: memory that nobody initialised used as a parameter or buffer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence

_FILLS_ALL = re.compile(
    r"reset_parameters|_?init_weights|weight_init|init_params|self\.(named_)?(parameters|modules)\(|self\.apply\(|"
    r"post_init|_init\("
)
_RESETS = re.compile(r"reset|init_weights|_init|initialize|initialise|post_init|fill_|init_empty|materialize")


class UninitialisedParameter(Rule[SourceFile]):
    """A parameter or module holds memory that nothing in the file initialises (torch.empty, to_empty).

    ## What it finds
    `nn.Parameter(torch.empty(...))` in a file that calls no initialiser at all (nn.init, reset_parameters,
    _init_weights, copy_, data.uniform_, ...); `module.to_empty(...)` without a reset afterwards.

    ## Why it is bad
    torch.empty returns whatever was in memory: often zeros on a fresh machine, NaN or 1e30 on the next. A
    buffer that is not in the checkpoint (`persistent=False`) is not restored by load_state_dict.

    ## Example
    `m = m.to_empty(device="cpu"); m.load_state_dict(sd)` with a non-persistent buffer

    ## The fix
    Initialise explicitly (`nn.init.*`), and call the module's own reset after `to_empty`.

    ## The popular fix that does not work
    `load_state_dict(strict=False)`: it silences the message about what is missing.

    ## References
    huggingface/transformers#45902; torch.utils.deterministic.fill_uninitialized_memory
    """

    code = "SRC028"
    name = "uninitialised-parameter"
    cause = "UNINITIALIZED_MEMORY"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        called = [name for name in subject.calls if not name.startswith("__")]
        for operation in subject.named("Parameter", "register_buffer"):
            text = operation.text
            fixed = operation.options.get("requires_grad")
            if fixed is not None and fixed.const is False:
                continue  # filled from a checkpoint by a loader of its own
            if not re.search(r"torch\.(empty\(|(Tensor|FloatTensor)\(\s*[\w.])", text) or "(0" in text:
                continue
            if _initialised(subject, operation):
                continue
            yield self.finding(
                f"`{text}` is memory that nobody initialised, and nothing in this file fills it",
                fix="initialise it: nn.init.* in __init__ or reset_parameters, or torch.zeros / torch.randn",
                evidence=evidence(operation),
                **at(subject, operation),
            )
        if "to_empty" in subject.text and not any(_RESETS.search(name) for name in called):
            for operation in subject.named("to_empty"):
                yield self.finding(
                    "to_empty leaves every parameter and buffer uninitialised; what the "
                    "checkpoint lacks stays so",
                    fix="call the module's reset (reset_parameters, init_weights) after "
                    "to_empty, and verify all buffers",
                    evidence=evidence(operation),
                    **at(subject, operation),
                )


def _initialised(subject: SourceFile, operation: Operation) -> bool:
    """The parameter's own name stands in a call that fills it, or the file fills all parameters in a loop."""
    if _FILLS_ALL.search(subject.text) or "load_state_dict" in subject.calls:
        return True
    line = subject.line(operation.line)
    match = re.search(r"([\w.]+)\s*(?::[^=]+)?=\s*[\w.]*Parameter\(|register_buffer\(\s*['\"](\w+)", line)
    if match is None:
        return True  # where it goes is not seen
    name = re.escape((match.group(1) or match.group(2)).rpartition(".")[2])
    place = rf"\b{name}\b(\.data)?(\[[^\n]*\])?"
    return (
        re.search(rf"\w+_\([^\n]*\b{name}\b|{place}\.\w+_\(|{place}\s*=(?!\s*[\w.]*Parameter)", subject.text)
        is not None
    )
