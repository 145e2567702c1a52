"""The learning rate a configuration asks for: from a file, or from one that lies beside the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from stayfinite.findings.subjects.checkpoint import ConfiguredRate
from stayfinite.readers.checkpoint import files
from stayfinite.readers.checkpoint.contents import Opaque
from stayfinite.readers.checkpoint.read import read_file
from stayfinite.readers.checkpoint.source import Unreadable, read_bytes

RATE_KEYS = ("lr", "learning_rate", "max_lr", "peak_lr", "base_lr", "lr0", "learningrate")
_BESIDE = ("config.yaml", "config.yml", "config.json", "config.toml", "hparams.yaml", "args.yaml", "args.json",
           "train.yaml", "training_args.bin", "params.yaml", "params.json")  # fmt: skip
_MOST = 4 << 20


def rates_beside(path: str) -> list[ConfiguredRate]:
    """From the first configuration in the checkpoint's folder, or the one above, that names a rate."""
    folder = path if files.what_is(path) == "folder" else files.parent(path)
    for place in (folder, files.parent(folder)):
        if files.what_is(place) != "folder":
            continue
        names = set(files.listing(place)[0])
        for name in _BESIDE:
            if name not in names:
                continue
            try:
                found = rates_in(files.join(place, name))
            except Unreadable:
                continue  # only a file the user named must be readable
            if found:
                return found
    return []


def rates_in(path: str) -> list[ConfiguredRate]:
    """Every learning rate in a YAML, JSON or TOML file, or in saved training arguments."""
    value = _load(path)
    found: list[ConfiguredRate] = []
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    seen: dict[int, Any] = {}
    while stack:
        name, node, depth = stack.pop()
        if isinstance(node, (Mapping, list, Opaque)):
            if id(node) in seen:  # YAML can repeat one table without end
                continue
            seen[id(node)] = node
        if isinstance(node, Opaque):
            node = node.state
        if isinstance(node, Mapping) and depth < 20:
            for key, inner in reversed(list(node.items())):
                stack.append((f"{name}.{key}".lstrip("."), inner, depth + 1))
        elif isinstance(node, list) and depth < 20:
            stack.extend((f"{name}.{place}", inner, depth + 1) for place, inner in enumerate(node[:100]))
        elif name.rpartition(".")[2].lower() in RATE_KEYS:
            number = _number(node)
            if number is not None and number > 0:
                found.append(ConfiguredRate(name, number, path))
    return found


def _number(value: Any) -> float | None:
    """YAML reads 1e-5 (without a dot) as text; people mean the number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _load(path: str) -> Any:
    if path.endswith((".bin", ".pt", ".pth", ".pkl")):
        return read_file(path).root
    source = files.open_source(path)
    text = read_bytes(source, 0, source.size, _MOST).decode("utf-8", "replace")
    try:
        if path.endswith(".json"):
            return json.loads(text)
        if path.endswith(".toml"):
            return _toml(text, path)
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as trouble:
        raise Unreadable(f"{path}: the configuration cannot be parsed ({trouble})") from trouble


def _toml(text: str, path: str) -> Any:
    try:
        import tomllib
    except ModuleNotFoundError as missing:
        raise Unreadable(f"{path}: reading TOML needs Python 3.11 or later") from missing
    return tomllib.loads(text)
