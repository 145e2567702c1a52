"""Capsule: what a failing step needs to run again elsewhere, as plain data: JSON and safetensors, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stayfinite.prove.capsule_facts import complaint

SCHEMA = 1
LIMIT = 2 << 30
_ALLOWED = {".json", ".safetensors", ".source"}
_LARGEST = {".json": 256 << 20, ".safetensors": LIMIT + (64 << 20), ".source": 64 << 20}


class NotPlain(Exception):
    """A folder that is no capsule, or holds something that is not plain data. Nothing of it was loaded."""


@dataclass(slots=True)
class Capsule:
    """The facts of a capsule, and its tensors by group: arguments, parameters, optimizer, random."""

    facts: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.facts["kind"])


def write(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], sources: Sequence[str],
          limit: int = LIMIT) -> list[str]:  # fmt: skip
    """Write a capsule, whole or not at all; gives what was left out because of its size, as sentences."""
    left_out: list[str] = []
    folder.parent.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=".capsule-", dir=folder.parent))
    try:
        used = 0
        for group, named in tensors.items():
            size = sum(t.numel() * t.element_size() for t in named.values())
            if used + size > limit:
                left_out.append(
                    f"{group}: {size / 2**30:.2f} GB, more than the limit of {limit / 2**30:.2f} GB leaves"
                )
                continue
            used += size
            save_file(
                {name: t.detach().cpu().contiguous().clone() for name, t in named.items()},
                own / f"{group}.safetensors",
            )
        known: dict[str, str] = {}
        for number, name in enumerate(sources):
            if Path(name).is_file():
                known[name] = digest(Path(name))
                shutil.copyfile(name, own / f"{number:03d}.source")
        document = {
            "schema": SCHEMA, **facts, "sources": known, "left_out": left_out, "groups": sorted(tensors),
            "versions": versions(),
        }  # fmt: skip
        (own / "capsule.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        own.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(own, folder)  # noqa: PTH105
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return left_out


def read(folder: Path) -> Capsule:
    """Read a capsule; refuses whatever is not plain data before anything is loaded."""
    if not (folder / "capsule.json").is_file():
        raise NotPlain(f"{folder} is no capsule: it has no capsule.json")
    strange = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix not in _ALLOWED or path.is_symlink() or not path.is_file()
    )
    if strange:
        raise NotPlain(
            f"{folder / strange[0]} is not plain data, and a capsule holds nothing else: it was not loaded"
        )
    large = [path.name for path in sorted(folder.iterdir()) if path.stat().st_size > _LARGEST[path.suffix]]
    if large:
        raise NotPlain(f"{folder / large[0]} is larger than anything that is written here: it was not loaded")
    try:
        facts = json.loads((folder / "capsule.json").read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise NotPlain(f"{folder} is damaged: its facts are no table")
        if facts.get("schema") != SCHEMA:
            raise NotPlain(
                f"{folder} has schema {facts.get('schema')!r}; this version of stayfinite reads {SCHEMA}"
            )
        wrong = complaint(facts)
        if wrong is not None:
            raise NotPlain(f"{folder} is damaged: {wrong}")
        tensors = {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
    except (
        ValueError,
        AttributeError,
        KeyError,
        TypeError,
        OSError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise NotPlain(
            f"{folder} is damaged: {str(error).splitlines()[0][:200] if str(error) else 'unreadable'}"
        ) from None
    return Capsule(facts, tensors)


def differences(facts: Mapping[str, Any]) -> list[str]:
    """What is otherwise here than where the capsule was made: source, versions, device."""
    found = []
    for name, was in facts.get("sources", {}).items():
        path = Path(name)
        if not path.is_file():
            found.append(f"source: {name} is gone")
        elif path.stat().st_size > _LARGEST[".source"] or digest(path) != was:
            found.append(f"source: {name} has changed")
    now = versions()
    for name, was in facts.get("versions", {}).items():
        if now.get(name) != was:
            found.append(f"version: {name} is {now.get(name)}, was {was}")
    return found


def versions() -> dict[str, str]:
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.machine()
    return {"torch": str(torch.__version__), "python": platform.python_version(), "device": device}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- arguments as plain data -----------------------------------------------------------------------------


def plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; tensors go to `tensors`, modules and anything else leave a mark."""
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach()
        return {"$tensor": name, "requires_grad": value.requires_grad}
    if isinstance(value, nn.Module):
        return {"$module": type(value).__name__}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"$float": value.hex()}
    if isinstance(value, (list, tuple)):
        items = [plain(item, tensors) for item in value]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"$dict": {key: plain(item, tensors) for key, item in value.items()}}
    return {"$left_out": type(value).__name__}


def restored(value: Any, tensors: Mapping[str, Tensor], model: nn.Module) -> Any:
    """The reverse of `plain`; every module is `model`."""
    try:
        return _restored(value, tensors, model)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise NotPlain(f"an argument in the capsule is damaged: {type(error).__name__}: {error}") from None


def _restored(value: Any, tensors: Mapping[str, Tensor], model: nn.Module) -> Any:
    if isinstance(value, list):
        return [_restored(item, tensors, model) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]].clone().requires_grad_(bool(value.get("requires_grad")))
    if "$module" in value:
        return model
    if "$float" in value:
        return float.fromhex(value["$float"])
    if "$tuple" in value:
        return tuple(_restored(item, tensors, model) for item in value["$tuple"])
    if "$dict" in value:
        return {key: _restored(item, tensors, model) for key, item in value["$dict"].items()}
    raise NotPlain(f"an argument of type {value.get('$left_out', '?')} could not be kept in the capsule")
