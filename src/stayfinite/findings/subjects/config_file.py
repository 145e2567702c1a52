"""ConfigFile: a configuration as plain data, with the place of every key. ConfigSet: several of one project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stayfinite.findings.subjects.source_file import HalfModel

_NUMBER_TEXT = "0123456789.+-eE_"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value, and where both stand."""

    path: tuple[str, ...]
    value: object  # a scalar, a list of scalars, or None for a section
    line: int
    column: int
    file: str
    value_line: int = 0
    value_column: int = 0
    text: str = ""  # the scalar as it is written
    quoted: bool = False
    section: bool = False  # the value is a table of further keys

    @property
    def key(self) -> str:
        return self.path[-1]

    @property
    def word(self) -> str:
        """The key in one spelling: lower case, words joined by underscores."""
        return normal(self.key)

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def number(self) -> float | None:
        """The number that is meant, also where it was written as text."""
        if isinstance(self.value, bool):
            return None
        if isinstance(self.value, (int, float)):
            return _as_float(self.value)
        if isinstance(self.value, str) and looks_like_number(self.value):
            return _as_float(self.value)
        return None

    @property
    def flag(self) -> bool | None:
        """The truth value that is meant; "auto" and names are none."""
        if isinstance(self.value, bool):
            return self.value
        if isinstance(self.value, str) and self.value.lower() in ("true", "yes", "on", "enabled"):
            return True
        if isinstance(self.value, str) and self.value.lower() in ("false", "no", "off", "disabled", "none"):
            return False
        return None


@dataclass(slots=True)
class ConfigFile:
    """One configuration, with what a Hydra-style defaults list brings in."""

    path: str
    form: str = "yaml"  # yaml, json, toml, python
    kind: str = "training"  # training, huggingface, deepspeed, accelerate, hydra
    text: str = ""
    entries: list[Entry] = field(default_factory=list)
    duplicates: list[Entry] = field(default_factory=list)
    settings: Mapping[str, float] = field(default_factory=dict)
    half_model: HalfModel | None = None  # a source beside it turns the model into half precision
    suppressed: Mapping[int, frozenset[str]] = field(default_factory=dict)
    reads_exponents: bool = False  # the sources beside or above it load it with yacs, OmegaConf or ruamel
    made_numbers: frozenset[str] = frozenset()  # keys of which every read is a float(config[key])

    def find(self, *words: str, section: str | None = None) -> Iterator[Entry]:
        """The entries whose key is one of these words (in any spelling), in the order of the file."""
        for entry in self.entries:
            if entry.section or entry.word not in words:
                continue
            if section is None or any(section in normal(part) for part in entry.path[:-1]):
                yield entry

    def first(self, *words: str, section: str | None = None) -> Entry | None:
        return next(self.find(*words, section=section), None)

    def beside(self, entry: Entry, *words: str) -> Entry | None:
        """An entry of the same section, else of the top level, else of a section of the same depth."""
        candidates = list(self.find(*words))
        for candidate in candidates:
            if candidate.path[:-1] == entry.path[:-1]:
                return candidate
        override = {"accelerated", "debug", "smoke", "test"}
        outer = [c for c in candidates if not override & {normal(part) for part in c.path[:-1]}]
        if override & {normal(part) for part in entry.path[:-1]}:
            return None if not outer else outer[0]
        return outer[0] if outer else None

    def threshold(self, name: str, default: float) -> float:
        return self.settings.get(name, default)


@dataclass(frozen=True, slots=True)
class KeyRead:
    """A place in the source that reads a key; `conditions` are the tests it stands behind."""

    key: str
    file: str
    line: int
    effective: bool | None = None  # False: never reached with the configuration at hand


@dataclass(slots=True)
class ConfigSet:
    """The configurations of one folder (or one command), and what the project's sources read."""

    configs: list[ConfigFile] = field(default_factory=list)
    sources: int = 0  # how many sources were searched for reads; 0: none
    asked: bool = False  # --source was given
    reads: dict[str, dict[str, list[KeyRead]]] = field(default_factory=dict)  # config path -> key -> places
    mentioned: frozenset[str] = frozenset()  # every identifier and text of the sources


def normal(key: str) -> str:
    """LearningRate, learning-rate, learning_rate -> learning_rate."""
    made = []
    for place, letter in enumerate(key):
        if letter.isupper() and place and (key[place - 1].islower() or key[place - 1].isdigit()):
            made.append("_")
        made.append("_" if letter in "- ." else letter.lower())
    return "".join(made)


def looks_like_number(text: str) -> bool:
    """1e-5, 5e5, .5: something float() takes, that is no word and no version."""
    stripped = text.strip()
    if not stripped or any(letter not in _NUMBER_TEXT for letter in stripped) or stripped[0] in "eE_":
        return False
    return _as_float(stripped) is not None


def _as_float(value: float | str) -> float | None:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
