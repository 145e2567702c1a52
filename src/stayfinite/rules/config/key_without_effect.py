"""CFG013: a key that no source reads, or none with these settings."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigSet, normal
from stayfinite.rules.config.phrases import at, shown


class KeyWithoutEffect(Rule[ConfigSet]):
    """A key of the configuration has no effect: no source reads it, or none reads it with these settings.

    ## What it finds
    keys that no source of the project mentions, and keys that are read only behind a test that this
    configuration never passes (`if config["stable"]:` with `stable: false`). Sources are those of `--source
    DIR`, else those that lie in the same folder, where they plainly read this file (at least half of its
    keys). Sections that are unpacked whole (`**config["optim"]`) count as read.

    ## Why it is bad
    The file says QK normalisation is on and beta2 is 0.99; the code uses neither. Every experiment that
    turns such a key measures noise.

    ## Example
    `qk_rmsnorm: true`, read only in a branch that is not taken

    ## The fix
    Remove the key, or read it; let the loader complain about keys that nobody asked for.

    ## The popular fix that does not work
    A comment beside the key. The next copy of the file has lost it.

    ## References
    TrainCheck (silent training errors); OmegaConf and dataclass configurations refuse unknown keys
    """

    code = "CFG013"
    name = "key-without-effect"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ConfigSet) -> Iterator[Finding]:
        if not subject.sources:
            return
        for config in subject.configs:
            reads = subject.reads.get(config.path)
            if (
                reads is None
                or config.kind in ("huggingface", "deepspeed", "accelerate")
                or config.form == "python"
            ):
                continue
            entries = [
                e
                for e in config.entries
                if not e.section
                and e.file == config.path
                and not e.key.startswith("_")
                and e.path[0] not in ("hydra", "defaults")  # Hydra reads these itself
            ]
            known = [e for e in entries if e.word in reads or e.word in subject.mentioned]
            if (
                not entries
                or (not subject.asked and len(known) < 0.5 * len(entries))
                or "_target_" in {e.key for e in config.entries}
            ):
                continue
            for entry in entries:
                places = reads.get(entry.word, [])
                if "*" in reads or any(
                    normal(part) in subject.reads.get("**", {}) for part in entry.path[:-1]
                ):
                    continue
                if not places and entry.word not in subject.mentioned:
                    yield self.finding(
                        f"{shown(entry)}: {_none_of(subject.sources)} mentions this key",
                        fix="remove the key, or read it; a loader that refuses unknown keys "
                        "finds the next one",
                        evidence={"key": entry.name, "sources": subject.sources},
                        **at(entry),
                    )
                elif places and all(place.effective is False for place in places):
                    first = places[0]
                    yield self.finding(
                        f"{shown(entry)} has no effect: it is read only at "
                        f"{first.file}:{first.line}, behind a test that "
                        "this configuration does not pass",
                        fix="remove the key, or read it where it is meant to act",
                        evidence={"key": entry.name, "reads": [f"{p.file}:{p.line}" for p in places]},
                        **at(entry),
                    )


def _none_of(sources: int) -> str:
    return "the one source that reads settings never" if sources == 1 else f"none of {sources} sources"
