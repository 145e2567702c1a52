"""Checkpoints of sharded state: a folder that torch.distributed.checkpoint writes, whole and verified, or not there.

Shards are written by the ranks that hold them; everything else is in `stayfinite.pt` beside them, with a CRC32 of every
file. On restore the shards are cut anew for as many ranks as there are then.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stayfinite.recover import checkpoint
from stayfinite.recover.checkpoint import CheckpointError
from stayfinite.recover.ranks import Ranks, rank, world_size
from stayfinite.recover.state import TrainingState
from stayfinite.shards import is_sharded

INDEX = "stayfinite.pt"
_SHARD = "stayfinite shard"
_PIECE = 1 << 22


def _torch_checkpoint() -> Any:
    import torch.distributed.checkpoint  # loads sympy: half a second that only sharded runs pay

    return torch.distributed.checkpoint


def is_sharded_checkpoint(path: Path) -> bool:
    return (path / INDEX).is_file() or (_earlier(path) / INDEX).is_file()


def write(path: Path, payload: dict[str, Any], ranks: Ranks) -> None:
    """All ranks call it with their own shards. A crash at any moment leaves the old folder or the new one, whole."""
    plain, shards = without_shards(payload), dict(named_shards(payload))
    beside = path.with_name(f".{path.name}.writing")
    _agree(ranks, path, lambda: _clear(beside) if rank() == 0 else None)

    def save_shards() -> list[str]:
        _torch_checkpoint().save(
            shards, checkpoint_id=beside, process_group=ranks.group, no_dist=world_size() == 1
        )
        own = [file for number, file in enumerate(_files(beside)) if number % world_size() == rank()]
        return [f"{file.relative_to(beside)}\n{_checksum(file, sync=True)}" for file in own]

    told = _agree(ranks, path, save_shards)
    sums = dict(entry.split("\n") for entry in told)

    def publish() -> None:
        checkpoint.write(beside / INDEX, {**plain, "files": sums, "ranks_saved": world_size()})
        _put_in_place(beside, path)

    _agree(ranks, path, lambda: publish() if rank() == 0 else None)


def read(path: Path, state: TrainingState, ranks: Ranks) -> dict[str, Any]:
    """The payload, with shards cut as the live state has them. All ranks call it; nothing live is changed."""
    folder = path if (path / INDEX).is_file() else _earlier(path)
    payload: dict[str, Any] = {}

    def check() -> None:
        payload.update(checkpoint.read(folder / INDEX))
        names = sorted(payload["files"])
        for name in names[rank() % max(1, len(names)) :: world_size()]:
            file = folder / name
            if not file.is_file() or _checksum(file) != payload["files"][name]:
                raise CheckpointError(f"{file} is missing or damaged. Restore an older checkpoint.")

    _agree(ranks, path, check)

    def load() -> None:
        templates = _templates(payload, state)
        wanted = {key: torch.empty_like(like.detach(), dtype=dtype) for key, like, dtype in templates}
        if wanted:
            _torch_checkpoint().load(
                wanted, checkpoint_id=folder, process_group=ranks.group, no_dist=world_size() == 1
            )
        _put_shards(payload, wanted)

    _agree(ranks, path, load)
    return payload


def _agree(ranks: Ranks, path: Path, work: Any) -> list[str]:
    """Do it on every rank; if it fails on one it has failed on all. Gives what all ranks' calls gave."""
    gave: list[str] = []
    problem = ""
    try:
        gave = work() or []
    except (CheckpointError, OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
        said = (str(error).splitlines() or [""])[0]
        problem = said if isinstance(error, CheckpointError) else f"{path}: {type(error).__name__}: {said}"
    told = ranks.exchange("\0".join([problem, *gave]).encode())
    every = [text.decode().split("\0") for text, _ in told]
    failed = [(number, parts[0]) for number, parts in enumerate(every) if parts[0]]
    if failed:
        raise CheckpointError(f"rank {failed[0][0]}: {failed[0][1]}")
    return [entry for parts in every for entry in parts[1:]]


# -- a payload with shards, and without


def named_shards(value: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
    """(key, tensor) of everything in a payload that is sharded."""
    if isinstance(value, Tensor):
        if is_sharded(value):
            yield key, value.detach()
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from named_shards(item, f"{key}/{name}" if key else str(name))
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from named_shards(item, f"{key}/{number}")


def without_shards(value: Any, key: str = "") -> Any:
    """The payload with a mark where a shard was."""
    if isinstance(value, Tensor) and is_sharded(value):
        return {_SHARD: key, "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict):
        return {
            name: without_shards(item, f"{key}/{name}" if key else str(name)) for name, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(without_shards(item, f"{key}/{number}") for number, item in enumerate(value))
    return value


def _marks(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, dict) and _SHARD in value:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _marks(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _marks(item)


def _put_shards(payload: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if _SHARD in value:
                return tensors[value[_SHARD]]
            return {name: walk(item) for name, item in value.items()}
        return type(value)(map(walk, value)) if type(value) in (list, tuple) else value

    payload.update(walk(dict(payload)))


def _templates(payload: dict[str, Any], state: TrainingState) -> list[tuple[str, Tensor, torch.dtype]]:
    """(key, a live tensor of the same shape and sharding, dtype in the file) of every shard in the payload."""
    models = {name: model.state_dict() for name, model in state.models.items()}
    averages = [average.state_dict() for average in state.averages]
    found = []
    for mark in _marks(payload):
        part, _, rest = mark[_SHARD].partition("/")
        try:
            like = _live(part, rest, models, averages, payload, state)
        except (KeyError, IndexError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint holds {mark[_SHARD]}, which the present model or optimizer does not have"
            ) from error
        found.append((mark[_SHARD], like, getattr(torch, mark["dtype"])))
    return found


def _live(
    part: str, rest: str, models: Any, averages: Any, payload: dict[str, Any], state: TrainingState
) -> Tensor:
    like: Tensor
    if part == "model":
        prefix, _, name = rest.partition("/") if list(models) != [""] else ("", "", rest)
        like = models[prefix][name]
    elif part == "ema":
        number, _, name = rest.partition("/")
        like = averages[int(number)][name]
    else:
        where, _, entry = rest.partition("/state/")
        index = int(where)
        order = [n for group in payload["optimizers"][index]["param_groups"] for n in group["params"]]
        parameters = [p for group in state.optimizers[index].param_groups for p in group["params"]]
        like = parameters[order.index(int(entry.partition("/")[0]))]
    return like


# -- files


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != INDEX)


def _checksum(path: Path, *, sync: bool = False) -> str:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
        if sync:
            os.fsync(file.fileno())
    return f"{value:08x}"


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _earlier(path: Path) -> Path:
    """Where the old folder is for the moment in which the new one takes its name."""
    return path.with_name(f".{path.name}.before")


def _put_in_place(new: Path, path: Path) -> None:
    earlier = _earlier(path)
    if path.exists():
        if earlier.exists():
            shutil.rmtree(earlier)
        path.rename(earlier)
    new.rename(path)
    checkpoint.sync_directory(path.parent)
    if earlier.exists():
        shutil.rmtree(earlier)
