"""What each place of a project says about learning rate and precision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stayfinite.doctor.runs import scale_moved
from stayfinite.findings import Finding
from stayfinite.findings.precision import WORDS, precision_settings
from stayfinite.findings.subjects.checkpoint import Kind
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.findings.subjects.project import PrecisionClaim, RateClaim, SavedState
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.readers.checkpoint.configured_rate import RATE_KEYS
from stayfinite.readers.launcher import Launcher

_HEAD = 1 << 18
_PRINTED = (
    (re.compile(r"mixed[ _-]?precision\W{1,4}(?:type\W{1,3})?(no|fp16|bf16)\b", re.I), ""),
    (re.compile(r"using (16bit|bfloat16|16-?bit) (?:native )?automatic mixed precision", re.I), ""),
    (re.compile(r"^\s*(fp16|bfloat16|bf16)_enabled\W+true", re.I | re.M), ""),
)
_PRINTED_WORDS = {
    "16bit": "fp16",
    "16-bit": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp16": "fp16",
    "no": "fp32",
}


def configured_rates(configs: Iterable[ConfigFile]) -> list[RateClaim]:
    return [
        RateClaim(entry.number, "configuration", entry.name, entry.file, entry.line)
        for config in configs
        for entry in config.find(*RATE_KEYS)
        if entry.number is not None and entry.number > 0
    ]


def launched_rates(launchers: Iterable[Launcher]) -> list[RateClaim]:
    found = []
    for launcher in launchers:
        for asked in launcher.rates:
            try:
                found.append(RateClaim(float(asked.value), "launcher", asked.name, launcher.path, asked.line))
            except ValueError:
                continue  # a shell variable or a range: nothing that can be compared
    return found


def logged_rates(logs: Iterable[Log]) -> list[RateClaim]:
    found = []
    for log in logs:
        for series in log.of_role(Role.RATE):
            line = series.first.line if series.first else None
            found.append(RateClaim(series.maximum, "log", f"highest {series.name}", log.path, line))
            if series.last_finite is not None:
                last = series.last_finite
                found.append(RateClaim(last.value, "log", f"last {series.name}", log.path, last.line))
    return found


def saved_rates(saved: SavedState) -> list[RateClaim]:
    checkpoint = saved.checkpoint
    found = [
        RateClaim(rate, "optimizer", words, saved.path)
        for words, rates in checkpoint.rates().items()
        for rate in rates[:3]
    ]
    for scheduler in checkpoint.schedulers:
        found += [
            RateClaim(rate, "scheduler", "last", saved.path) for rate in sorted(set(scheduler.last_lr))[:3]
        ]
    return found


def configured_precisions(configs: Iterable[ConfigFile], findings: Sequence[Finding]) -> list[PrecisionClaim]:
    """A key that lint calls without effect does not act."""
    idle = {(finding.file, finding.line) for finding in findings if finding.code == "CFG013"}
    return [
        PrecisionClaim(
            precision,
            "configuration" if config.kind not in ("accelerate", "deepspeed") else f"{config.kind} file",
            f"{entry.name}: {entry.text or entry.value}",
            entry.file,
            entry.line,
            (entry.file, entry.line) not in idle,
        )
        for config in configs
        for precision, entry in precision_settings(config)
    ]


def launched_precisions(launchers: Iterable[Launcher]) -> list[PrecisionClaim]:
    return [
        PrecisionClaim(
            WORDS[asked.value],
            "launcher",
            f"--{asked.name}" if asked.name == asked.value else f"{asked.name} {asked.value}",
            launcher.path,
            asked.line,
        )
        for launcher in launchers
        for asked in launcher.precisions
        if asked.value in WORDS
    ]


def source_precisions(sources: Iterable[SourceFile]) -> Iterator[PrecisionClaim]:
    """An autocast whose dtype is written down; behind a test, or in a file that does not train, it may not act."""
    for source in sources:
        trains = any(event.what == "backward" for facts in source.functions for event in facts.events)
        for operation in source.named("autocast"):
            given = [v for v in (*operation.operands, *operation.options.values()) if v.kind == "dtype"]
            word = str(given[0].const) if given else ""
            if word not in WORDS:
                continue
            enabled = operation.options.get("enabled")
            acts = (
                trains
                and not operation.branch
                and not operation.no_grad
                and (enabled is None or enabled.const is True)
            )
            yield PrecisionClaim(
                WORDS[word], "source", operation.text[:60], source.path, operation.line, acts
            )


def logged_precisions(logs: Iterable[Log]) -> Iterator[PrecisionClaim]:
    """What a framework printed at the start; a loss scale above 1 says float16."""
    for log in logs:
        scale = log.main(Role.SCALE)
        if scale is not None and scale_moved(log):
            line = scale.first.line if scale.first else None
            yield PrecisionClaim("fp16", "log", f"{scale.name} up to {scale.maximum:g}", log.path, line)
            continue
        if log.format not in ("text", "plain text") and not log.path.endswith(
            (".log", ".out", ".txt", ".err")
        ):
            continue
        try:
            with Path(log.path).open("rb") as handle:
                head = handle.read(_HEAD).decode("utf-8", "replace")
        except OSError:
            continue  # it was read a moment ago; then only its numbers are known
        for pattern, _ in _PRINTED:
            match = pattern.search(head)
            if match is not None:
                line = head.count("\n", 0, match.start(1)) + 1
                yield PrecisionClaim(
                    _PRINTED_WORDS[match[1].lower()], "log", match[0].strip()[:60], log.path, line
                )
                break


def saved_precision(saved: SavedState) -> PrecisionClaim | None:
    """The dtype of the weights, where all of them have one."""
    weights = [tensor for tensor in saved.checkpoint.of_kind(Kind.WEIGHTS) if tensor.floating]
    dtypes = {tensor.dtype for tensor in weights}
    if len(dtypes) != 1:
        return None
    dtype = dtypes.pop()
    if dtype not in WORDS:
        return None
    return PrecisionClaim(WORDS[dtype], "checkpoint", f"all {len(weights)} weights are {dtype}", saved.path)
