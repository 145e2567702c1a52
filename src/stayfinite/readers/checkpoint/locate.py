"""Finds the checkpoints among files and folders: which files belong together, and how they are laid out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from stayfinite.readers.checkpoint import files
from stayfinite.readers.checkpoint.source import Unreadable

CHECKPOINT_ENDINGS = (
    ".pt",
    ".pth",
    ".th",
    ".ckpt",
    ".bin",
    ".safetensors",
    ".npz",
    ".npy",
    ".pkl",
    ".pickle",
)
CERTAIN_ENDINGS = (".pt", ".pth", ".th", ".ckpt", ".safetensors", ".npz", ".npy")
_MODEL_FILE = re.compile(
    r"^(model|pytorch_model|adapter_model|diffusion_pytorch_model)([-.].*)?\.(safetensors|bin)$"
)
_ZERO = re.compile(r"_(model|optim)_states\.pt$")
_RANK = re.compile(r"(rank|shard)[_\-]?(\d+)", re.I)
_OF = re.compile(r"(\d+)[_\-]of[_\-](\d+)")
_PARTS_OF_TRAINER = re.compile(r"^(pytorch_model_fsdp_\d+|optimizer_\d+|global_step\d+)$")
_DEEPEST = 8


class Layout(str, Enum):
    """How a checkpoint is spread over files."""

    FILE = "file"
    FOLDER = "folder"
    """One model in several files: Hugging Face shards, optimizer.pt beside the model, trainer_state.json."""
    RANKS = "ranks"
    """One file per rank, with the same names in each: FSDP, DeepSpeed ZeRO."""
    DISTRIBUTED = "distributed"
    """A torch.distributed.checkpoint folder."""


@dataclass(frozen=True, slots=True)
class Location:
    """One checkpoint: the path to show, and the files to read."""

    path: str
    layout: Layout
    files: tuple[str, ...]
    given: bool = True
    """The user named it; else it was found in a folder and may turn out to be something else."""

    def nbytes(self) -> int:
        return sum(files.size_of(name) for name in self.files)


def locate(paths: list[str]) -> list[Location]:
    """All checkpoints under the given files, folders, patterns and URLs, in the order given."""
    found: list[Location] = []
    for pattern in paths:
        expanded = files.expand(pattern)
        if not expanded:
            raise Unreadable(f"{pattern}: no file matches this pattern")
        for path in expanded:
            found += _at(path)
    unique = {location.path: location for location in found}
    return list(unique.values())


def _at(path: str) -> list[Location]:
    what = files.what_is(path)
    if what == "missing":
        raise Unreadable(f"{path}: {files.why_not_there(path)}")
    if what == "file":
        if path.endswith(".index.json"):
            return _in_folder(files.parent(path), 0, given=True)
        return [Location(path, Layout.FILE, (path,))]
    found = _in_folder(path, 0, given=True)
    if not found:
        endings = " ".join(CHECKPOINT_ENDINGS)
        raise Unreadable(f"{path}: no checkpoint in this folder (looked for {endings} and .metadata)")
    return found


def _in_folder(folder: str, depth: int, given: bool = False) -> list[Location]:
    names, folders = files.listing(folder)
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        parts = [name for name in names if name.endswith(".distcp") or name == ".metadata"]
        return [Location(folder, Layout.DISTRIBUTED, _full(folder, parts), given)]
    candidates = [name for name in names if name.endswith(CHECKPOINT_ENDINGS)]
    found: list[Location] = []
    inner = [name for name in folders if not name.startswith(".")]
    if any(_ZERO.search(name) for name in candidates):
        found.append(Location(folder, Layout.RANKS, _full(folder, candidates), given))
    elif "trainer_state.json" in names or any(
        _MODEL_FILE.match(name) or name.endswith(".index.json") for name in names
    ):
        parts = [name for name in candidates if name != "training_args.bin"]
        members = list(_full(folder, parts))
        for name in [name for name in inner if _PARTS_OF_TRAINER.match(name)]:
            inner.remove(name)
            for part in _in_folder(files.join(folder, name), depth + 1):
                members += part.files
        found.append(Location(folder, Layout.FOLDER, tuple(members), given))
    else:
        found += _loose(folder, candidates)
    if depth < _DEEPEST:
        for name in inner:
            found += _in_folder(files.join(folder, name), depth + 1)
    return found


def _loose(folder: str, names: list[str]) -> list[Location]:
    """Files that stand alone, and sets of files that differ in a rank or shard number only."""
    sets: dict[str, list[str]] = {}
    for name in names:
        sets.setdefault(_RANK.sub(r"\1#", _OF.sub(r"#-of-\2", name)), []).append(name)
    found: list[Location] = []
    for template, members in sets.items():
        if "#" in template and (len(members) > 1 or "#-of-" in template):
            layout = Layout.FOLDER if "#-of-" in template else Layout.RANKS
            found.append(
                Location(
                    files.join(folder, template.replace("#", "*")), layout, _full(folder, members), False
                )
            )
        else:
            found += [
                Location(files.join(folder, name), Layout.FILE, (files.join(folder, name),), False)
                for name in members
            ]
    return found


def _full(folder: str, names: list[str]) -> tuple[str, ...]:
    return tuple(files.join(folder, name) for name in names)


def rank_of(path: str) -> int | None:
    """The rank a file was written by, from its name."""
    name = files.base(path)
    data_parallel = re.search(r"pp_rank_(\d+)", name)  # ZeRO also writes the model-parallel rank, mp_rank
    if data_parallel:
        return int(data_parallel.group(1))
    match = None if "mp_rank" in name else _RANK.search(name)
    return int(match.group(2)) if match else None


def numbered(paths: tuple[str, ...]) -> tuple[set[int], int | None]:
    """The shard numbers present in the names, and how many there should be where the names say so."""
    present: set[int] = set()
    total: int | None = None
    for path in paths:
        match = _OF.search(files.base(path))
        if match:
            present.add(int(match.group(1)))
            total = int(match.group(2))
    return present, total
