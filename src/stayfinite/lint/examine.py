"""Read what was found and let the rules look at it: each source, each configuration, and what they say together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.findings import Finding, examine
from stayfinite.findings.subjects.config_file import ConfigFile, ConfigSet, KeyRead
from stayfinite.findings.subjects.source_file import HalfModel, SourceFile
from stayfinite.lint.collect import Found, collect
from stayfinite.lint.settings import Settings
from stayfinite.readers.config import UnreadableConfig, is_training_config, read_config
from stayfinite.readers.config.read import read_config_text
from stayfinite.readers.source.key_reads import SourceKeys, made_numbers, reached, source_keys
from stayfinite.readers.source.read import UnreadableSource, parse, read_text, read_tree
from stayfinite.readers.source.suppressions import is_suppressed

_MODEL_NAME = re.compile(r"(\w+_)?(model|net|network|student|encoder|decoder|unet|transformer|backbone)")
_DRIVES = frozenset(("fit", "train", "Trainer", "seed_everything", "set_seed", "manual_seed"))
_READS_EXPONENTS = re.compile(r"^\s*(?:from|import)\s+(?:yacs|omegaconf|hydra|ruamel)\b", re.MULTILINE)
"""Loaders for which 1e-5 is a number: yacs evaluates texts, OmegaConf and ruamel have a resolver of their own."""
Advance = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What came out: the findings, what could not be read, and how much was."""

    findings: list[Finding] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    sources: int = 0
    configs: list[ConfigFile] = field(default_factory=list)
    lines: int = 0
    read: list[SourceFile] = field(default_factory=list)
    """The sources in which something happens, and those that start it, for whoever asks more of them."""

    @property
    def files(self) -> int:
        return self.sources + len(self.configs)


@dataclass(slots=True)
class _Folder:
    """What is known of one folder: its sources' keys, its configurations, and a model that is turned into half."""

    configs: list[ConfigFile] = field(default_factory=list)
    python: list[Path] = field(default_factory=list)
    sources: list[SourceFile] = field(default_factory=list)
    half_model: HalfModel | None = None
    reads_exponents: bool = False


def lint(
    paths: Sequence[str],
    settings: Settings,
    *,
    exclude: Sequence[str] = (),
    source: str | None = None,
    advance: Advance | None = None,
) -> Report:
    """Lint files and folders. `source` is where configuration keys must be read."""
    report = Report()
    files = collect(paths, (*settings.exclude, *exclude), report.unreadable)
    folders: dict[str, _Folder] = {}
    for found in files:
        if advance is not None:
            advance(str(found.path))
        folder = folders.setdefault(os.fspath(found.path.parent), _Folder())
        if found.source:
            _take_source(found, folder, report, settings)
        else:
            _take_config(found, folder, report, settings)
    given = _given_sources(source, report) if source is not None else None
    _mark_groups(report.configs)
    _mark_loaders(folders)
    for folder in folders.values():
        _examine_folder(folder, given, report)
    report.findings = _once(report.findings)
    return report


def _take_source(found: Found, folder: _Folder, report: Report, settings: Settings) -> None:
    path = str(found.path)
    try:
        text = read_text(found.path)
        tree = parse(text, path)
        subject = read_tree(tree, text, path)
        if _is_config_module(found.path):
            _add_config(read_config_text(text, found.path), folder, report, settings)
    except (UnreadableSource, UnreadableConfig) as trouble:
        report.unreadable.append(str(trouble))
        return
    subject.settings = settings.thresholds
    report.sources += 1
    report.lines += len(text.splitlines())
    if subject.operations or subject.functions or subject.constants:
        folder.sources.append(subject)
        report.read.append(subject)
    elif _DRIVES & subject.calls:
        report.read.append(subject)
    if folder.half_model is None:
        folder.half_model = _half_model(subject)
    folder.reads_exponents = folder.reads_exponents or _READS_EXPONENTS.search(text) is not None
    folder.python.append(found.path)


def _take_config(found: Found, folder: _Folder, report: Report, settings: Settings) -> None:
    try:
        config = read_config(found.path)
    except UnreadableConfig as trouble:
        report.unreadable.append(str(trouble))
        return
    if found.named or is_training_config(config):
        _add_config(config, folder, report, settings)


def _add_config(config: ConfigFile, folder: _Folder, report: Report, settings: Settings) -> None:
    config.settings = settings.thresholds
    folder.configs.append(config)
    report.configs.append(config)
    report.lines += len(config.text.splitlines())


def _is_config_module(path: Path) -> bool:
    """config.py, default_config.py, configs/resnet.py: modules that are read as configurations as well."""
    return "config" in path.stem.lower() or path.parent.name.lower() in ("configs", "config", "conf")


def _half_model(subject: SourceFile) -> HalfModel | None:
    for operation in subject.named("cast"):
        value = operation.operands[0]
        name = operation.text.partition(".")[0].lower()
        if value.kind in ("module", "instance") or _MODEL_NAME.fullmatch(name):
            dtype = str(operation.options["dtype"].const)
            return HalfModel(subject.path, operation.line, dtype, operation.branch)
    return None


def _mark_groups(configs: Sequence[ConfigFile]) -> None:
    """A file that a Hydra-style defaults list brings in is read by Hydra too, whatever it looks like by itself."""
    brought = {
        os.path.realpath(entry.file)
        for config in configs
        if config.kind == "hydra"
        for entry in config.entries
    }
    for config in configs:
        if os.path.realpath(config.path) in brought:
            config.kind = "hydra"


def _given_sources(source: str, report: Report) -> list[SourceKeys]:
    refused: list[str] = []
    paths = [found.path for found in collect([source], (), refused) if found.source]
    keys = _keys(paths, refused)
    report.unreadable += refused
    return keys


def _keys(paths: Sequence[Path], refused: list[str]) -> list[SourceKeys]:
    """What sources read of configurations. Parsed again: most folders have no configuration, and trees are large."""
    keys: list[SourceKeys] = []
    for path in paths:
        try:
            keys.append(source_keys(parse(read_text(path), str(path)), str(path)))
        except UnreadableSource as trouble:
            refused.append(str(trouble))
    return keys


def _examine_folder(folder: _Folder, given: list[SourceKeys] | None, report: Report) -> None:
    for subject in folder.sources:
        subject.half_model = folder.half_model
        report.findings += _unsuppressed(examine(subject), {subject.path: subject.suppressed})
    if not folder.configs:
        return
    for config in folder.configs:
        half = folder.half_model
        if half is not None and reached(half.branch, _values(config)):
            config.half_model = half
    comments = {config.path: config.suppressed for config in folder.configs}
    keys = _keys(folder.python, []) if given is None else given
    made = made_numbers(keys)
    for config in folder.configs:
        config.made_numbers = made
    together = _together(folder, keys, given is not None)
    found = [finding for config in folder.configs for finding in examine(config)] + examine(together)
    report.findings += _unsuppressed(found, comments)


def _mark_loaders(folders: Mapping[str, _Folder]) -> None:
    """A configuration beside or below sources that load it with more than PyYAML."""
    loading = {Path(place) for place, folder in folders.items() if folder.reads_exponents}
    for folder in folders.values():
        for config in folder.configs:
            config.reads_exponents = bool(loading.intersection(Path(config.path).parents))


def _together(folder: _Folder, keys: Sequence[SourceKeys], asked: bool) -> ConfigSet:
    readers = [source for source in keys if source.reads or source.mentioned]
    subject = ConfigSet(folder.configs, len(readers), asked)
    subject.mentioned = frozenset(word for source in readers for word in source.mentioned)
    whole = {name for source in readers for name in source.unpacked}
    subject.reads["**"] = {name: [] for name in whole if name not in ("", "?")}
    for config in folder.configs:
        values = _values(config)
        places: dict[str, list[KeyRead]] = {}
        for source in readers:
            for read in source.effective(values):
                places.setdefault(read.key, []).append(read)
        if "" in whole:
            places["*"] = []  # the whole configuration is handed on: every key may be read
        subject.reads[config.path] = places
    return subject


def _values(config: ConfigFile) -> dict[str, object]:
    """Key -> value, for keys that have one value in the file."""
    values: dict[str, object] = {}
    twice: set[str] = set()
    for entry in config.entries:
        if entry.section or isinstance(entry.value, list):
            continue
        if entry.word in values and values[entry.word] != entry.value:
            twice.add(entry.word)
        values[entry.word] = entry.value
    return {word: value for word, value in values.items() if word not in twice}


def _unsuppressed(
    findings: Sequence[Finding], comments: Mapping[str, Mapping[int, frozenset[str]]]
) -> list[Finding]:
    kept: list[Finding] = []
    for finding in findings:
        found = comments.get(finding.file or "")
        if found and is_suppressed(found, finding.code, finding.line or 0):
            continue
        kept.append(finding)
    return kept


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a place and rule, the worst; in the order of files and lines."""
    kept: dict[tuple[str, str | None, int | None, int | None], Finding] = {}
    for finding in findings:
        place = (finding.code, finding.file, finding.line, finding.column)
        if place not in kept or finding.severity.rank < kept[place].severity.rank:
            kept[place] = finding
    return sorted(kept.values(), key=lambda f: (f.file or "", f.line or 0, f.column or 0, f.code))
