"""SRC041: a resume that replaces the asked learning rate by the checkpoint's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at

_OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax")


class RateTakenFromCheckpoint(Rule[SourceFile]):
    """The optimizer's load_state_dict replaces the learning rate that was asked for by the checkpoint's.

    ## What it finds
    An optimizer that is built with a rate from options or a variable and then loads its state, in a file
    that never writes a rate into `param_groups` afterwards and prints nothing of it.

    ## Why it is bad
    The rate is part of the optimizer's state. A new rate on the command line or in the config has no effect
    after a resume, silently.

    ## Example
    `opt = SGD(net.parameters(), lr=args.lr); opt.load_state_dict(ck["optimizer"])`

    ## The fix
    Set it again: `for group in opt.param_groups: group["lr"] = args.lr` (and `initial_lr`, and the
    scheduler's `base_lrs`), and print old and new.

    ## The popular fix that does not work
    Changing the scheduler only: it multiplies the old base rate.

    ## References
    pytorch/examples#816, ultralytics/yolov5#292
    """

    code = "SRC041"
    name = "rate-taken-from-checkpoint"
    cause = "RESUME_LR"
    severity = Severity.INFO

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        if "param_groups" in re.sub(r"param_groups\[0\]\[.lr.\]\s*(==|!=)", "", subject.text):
            return
        made = {}
        for operation in subject.operations:
            if operation.name in _OPTIMIZERS:
                rate = operation.option("lr", 1)
                if rate is not None and _asked(operation.text):
                    made[operation.line] = operation
        if not made:
            return
        for facts in subject.functions:
            for event in facts.events:
                if event.what == "load_state_dict" and _is_optimizer(subject, event.subject):
                    yield self.finding(
                        f"{event.subject}.load_state_dict brings back the checkpoint's "
                        "rate; the one asked for has no effect",
                        fix="set the rate again in param_groups (lr and initial_lr) after "
                        "loading, and print old and new",
                        evidence={"optimizer_lines": sorted(made)},
                        **at(subject, event),
                    )
                    return


def _asked(text: str) -> bool:
    """The rate is a variable, so that somebody may change it between two runs."""
    named = re.search(r"\blr\s*=\s*[A-Za-z_]", text)
    return (
        named is not None
        or re.search(r"parameters\(\)\s*,\s*[A-Za-z_][\w.\[\]'\"]*\s*[,)]", text) is not None
    )


def _is_optimizer(subject: SourceFile, name: str) -> bool:
    pattern = rf"(?<![\w.]){re.escape(name)}\s*(?::[^=\n]+)?=\s*[\w.]*({'|'.join(_OPTIMIZERS)})\("
    return re.search(pattern, subject.text) is not None
