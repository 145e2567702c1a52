"""The precisions of a training in one spelling, and what the settings of a configuration ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stayfinite.findings.subjects.config_file import ConfigFile, Entry

WORDS: Final[dict[str, str]] = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "16": "fp16", "16-mixed": "fp16", "16-true": "fp16",
    "bf16": "bf16", "bfloat16": "bf16", "bf16-mixed": "bf16", "bf16-true": "bf16",
    "no": "fp32", "fp32": "fp32", "float32": "fp32", "32": "fp32", "32-true": "fp32", "full": "fp32",
}  # fmt: skip


def precision_settings(config: ConfigFile) -> Iterator[tuple[str, Entry]]:
    """What each setting asks for; a setting that is off or "auto" asks for nothing."""
    for entry in config.entries:
        if entry.section:
            continue
        if entry.word in ("mixed_precision", "precision", "amp_dtype", "autocast_dtype"):
            word = "no" if entry.value is False else str(entry.value).lower().rpartition("torch.")[2]
            if word in WORDS:
                yield WORDS[word], entry
        elif entry.word in ("fp16", "bf16", "use_fp16", "use_bf16") and entry.flag is True:
            yield entry.word.removeprefix("use_"), entry
        elif (
            entry.word == "enabled"
            and len(entry.path) > 1
            and entry.path[-2] in ("fp16", "bf16")
            and entry.flag
        ):
            yield entry.path[-2], entry
