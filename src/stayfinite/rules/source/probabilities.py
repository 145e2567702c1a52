"""Whether a variable of unknown origin is a probability: by its name, or by log(p) and log(1 - p) side by side."""

from __future__ import annotations

import re

from stayfinite.findings.subjects.source_file import Operation, SourceFile

_NAME = re.compile(
    r"(^|[._])(probs?|probabilit(y|ies)|softmaxed|\w+_probs?|\w+_probabilit(y|ies))$", re.IGNORECASE
)
_LOGGED = re.compile(r"log_?prob|logp", re.IGNORECASE)
_PLAIN = re.compile(r"[\w.]+(\[[^\]]*\])?")


def argument_text(text: str) -> str:
    """`p` of torch.log(p) and of p.log()."""
    match = re.fullmatch(r"[\w.]*\blog\((.*)\)", text) if not text.endswith(".log()") else None
    return (match.group(1) if match else text.removesuffix(".log()")).strip()


def probability_by_use(subject: SourceFile, operation: Operation) -> bool:
    """p * log(p), log(p) beside log(1 - p), kl_div(log(p), q), or a name that says so."""
    argument = argument_text(operation.text)
    if operation.no_grad or operation.guarded or operation.selected or not _PLAIN.fullmatch(argument):
        return False
    if _LOGGED.search(argument) or operation.operands[0].has("raised"):
        return False
    if _NAME.search(argument):
        return True
    name = re.escape(argument)
    line = subject.line(operation.line)
    if re.search(rf"(?<![\w.]){name}\s*\*\s*(torch\.log\(\s*{name}\s*\)|{name}\.log\(\))", line):
        return True
    if re.search(rf"kl_div\(\s*(torch\.log\(\s*{name}\s*\)|{name}\.log\(\))", line):
        return True
    return any(
        other.function == operation.function
        and abs(other.line - operation.line) <= 3
        and re.fullmatch(rf"\(?1(\.0?)?\s*-\s*{name}\)?", argument_text(other.text))
        for other in subject.named("log")
    )
