"""Reads a checkpoint: its structure first (cheap), then the statistics of its tensors (at disk speed)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Number, Problem, Statistics, Tensor
from stayfinite.readers.checkpoint import (
    distributed,
    files,
    numpy_arrays,
    plain_pickle,
    safetensors,
    torch_legacy,
    torch_zip,
)
from stayfinite.readers.checkpoint.contents import Contents, TensorRef
from stayfinite.readers.checkpoint.live import LiveTensor, measure_live
from stayfinite.readers.checkpoint.locate import CERTAIN_ENDINGS, Layout, Location, numbered, rank_of
from stayfinite.readers.checkpoint.measure import Measured, measure
from stayfinite.readers.checkpoint.sort_state import Sorted, add_tree, finish, step_of
from stayfinite.readers.checkpoint.source import Unreadable, read_bytes

# The first that recognises the file reads it; the plain pickle accepts most and comes last.
_FORMATS = (numpy_arrays, torch_zip, torch_legacy, safetensors, plain_pickle)
_STEP_IN_NAME = re.compile(r"(?:step|iter(?:ation)?|checkpoint|ckpt)s?[=_\-]?0*(\d+)", re.I)
_MOST_JSON = 64 << 20


def read_file(path: str) -> Contents:
    """One file of any format."""
    source = files.open_source(path)
    if source.size == 0:
        raise Unreadable(f"{path}: the file is empty; it was created and never written")
    head = read_bytes(source, 0, min(64, source.size))
    for form in _FORMATS:
        if form.sniff(head, files.base(path)):
            contents: Contents = form.read(source)
            return contents
    raise Unreadable(
        f"{path}: not a checkpoint format known here (torch, safetensors, numpy, pickle); it starts with {head[:8]!r}"
    )


def read_structure(location: Location) -> Sorted:
    """Everything but the values of the tensors. `Unreadable` where nothing at all can be read."""
    checkpoint = Checkpoint(location.path, files=list(location.files))
    checkpoint.nbytes = location.nbytes()
    into = Sorted(checkpoint)
    if location.layout is Layout.DISTRIBUTED:
        _add(into, distributed.read_folder(location.path, location.files), location.path, "")
    else:
        _read_members(into, location)
    if location.layout in (Layout.FOLDER, Layout.RANKS):
        _check_members(into, location)
    if location.layout is Layout.FOLDER and files.what_is(location.path) == "folder":
        _read_beside(into, location.path)
    step_from_name(checkpoint)
    return into


def _read_members(into: Sorted, location: Location) -> None:
    troubles: list[Unreadable] = []
    checkpoint = into.checkpoint
    folders: dict[str, list[str]] = {}
    for path in location.files:
        if files.base(path) == ".metadata" or path.endswith(".distcp"):
            folders.setdefault(files.parent(path), []).append(path)
            continue
        try:
            contents = read_file(path)
        except Unreadable as trouble:
            if location.layout is not Layout.FILE and not path.endswith(CERTAIN_ENDINGS):
                continue  # a folder may hold other .bin and .pkl files
            troubles.append(trouble)
            checkpoint.problems.append(Problem("damaged", path, str(trouble)))
            continue
        optimizers = len(checkpoint.optimizers)
        _add(into, contents, path, _prefix(location, path))
        if location.layout is Layout.RANKS:
            step = step_of(contents.root)
            if step is not None:
                checkpoint.rank_steps[path] = step
            for optimizer in checkpoint.optimizers[optimizers:]:
                optimizer.rank, optimizer.flat = rank_of(path), True
    for folder, members in folders.items():
        _add(into, distributed.read_folder(folder, tuple(members)), folder, files.base(folder))
    if troubles and len(troubles) == len(location.files):
        raise troubles[0]


def _prefix(location: Location, path: str) -> str:
    """A name for what a file beside the model holds; the model's own names stay as they are."""
    if location.layout is Layout.FILE:
        return ""
    stem = files.base(path).partition(".")[0]
    if location.layout is Layout.RANKS:
        return stem
    return stem if re.match(r"optim|sched|scaler|rng_state|random_states|ema", stem) else ""


def _add(into: Sorted, contents: Contents, path: str, prefix: str) -> None:
    checkpoint = into.checkpoint
    checkpoint.problems += contents.problems
    if contents.refused:
        names = sorted(contents.refused)
        message = f"it names {len(names)} classes or functions that a weights-only load refuses"
        checkpoint.problems.append(Problem("refused-global", path, message, {"globals": names[:50]}))
    kinds = {"optim": Kind.OPTIMIZER, "sched": Kind.SCHEDULER, "scale": Kind.SCALER, "ema": Kind.AVERAGE}
    kind = next((kind for start, kind in kinds.items() if prefix.startswith(start)), None)
    if prefix.startswith(("rng_state", "random_states")):
        kind = Kind.RANDOM
    formats = {name for name in checkpoint.format.split(" + ") if name != "unknown"} | {contents.format}
    checkpoint.format = " + ".join(sorted(formats))
    add_tree(into, contents.root, path, prefix, kind)


def _check_members(into: Sorted, location: Location) -> None:
    """Shards that are missing, or that hold the same name."""
    checkpoint = into.checkpoint
    present, total = numbered(location.files)
    if total is not None and total < 100_000:
        lost = [number for number in range(1, total + 1) if number not in present]
        # Some tools count from zero.
        lost = [number for number in range(total) if number not in present] if 0 in present else lost
        if lost:
            message = f"shard {lost[0]} of {total} is missing ({len(lost)} missing in all)"
            checkpoint.problems.append(
                Problem("missing-shard", location.path, message, {"missing": lost[:50], "of": total})
            )
    if location.layout is Layout.RANKS:
        ranks = {rank for rank in map(rank_of, location.files) if rank is not None}
        world = max(checkpoint.world_size or 0, max(ranks, default=-1) + 1)
        lost = [rank for rank in range(min(world, 100_000)) if rank not in ranks] if ranks else []
        if lost:
            message = f"the file of rank {lost[0]} is missing ({len(lost)} of {world} ranks missing)"
            checkpoint.problems.append(
                Problem("missing-shard", location.path, message, {"missing": lost[:50], "of": world})
            )
    else:
        _check_collisions(checkpoint)


def _check_collisions(checkpoint: Checkpoint) -> None:
    first: dict[str, Tensor] = {}
    for tensor in checkpoint.of_kind(Kind.WEIGHTS, Kind.BUFFERS):
        other = first.setdefault(tensor.name, tensor)
        same_kind_of_file = other.file.rpartition(".")[2] == tensor.file.rpartition(".")[2]
        if other is not tensor and other.file != tensor.file and same_kind_of_file:
            message = f"{tensor.name} is in {files.base(other.file)} and in {files.base(tensor.file)}"
            evidence = {"tensor": tensor.name, "files": [other.file, tensor.file]}
            checkpoint.problems.append(Problem("collision", tensor.file, message, evidence))


def _read_beside(into: Sorted, folder: str) -> None:
    """The index of the shards, and the trainer's own account of the run."""
    checkpoint = into.checkpoint
    names, _ = files.listing(folder)
    for name in names:
        if name.endswith(".index.json"):
            _check_index(checkpoint, folder, files.join(folder, name))
    if "trainer_state.json" in names:
        path = files.join(folder, "trainer_state.json")
        state = _json(path, checkpoint)
        if isinstance(state.get("global_step"), int):
            checkpoint.step, checkpoint.step_from = state["global_step"], "trainer_state.json"
        if isinstance(state.get("epoch"), (int, float)):
            checkpoint.epoch = float(state["epoch"])
        history = state.get("log_history")
        entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
        loss = next((entry["loss"] for entry in reversed(entries) if "loss" in entry), None)
        if isinstance(loss, float) and not math.isfinite(loss):
            checkpoint.numbers.append(Number("log_history.loss", path, Kind.OTHER, loss))


def _check_index(checkpoint: Checkpoint, folder: str, path: str) -> None:
    mapping = _json(path, checkpoint).get("weight_map")
    if not isinstance(mapping, Mapping):
        checkpoint.problems.append(Problem("damaged", path, "the index has no weight_map"))
        return
    present = {files.base(name) for name in checkpoint.files}
    lost = sorted({str(shard) for shard in mapping.values() if shard not in present})
    for shard in lost[:20]:
        message = f"the index lists {shard}, which is not in the folder"
        checkpoint.problems.append(
            Problem("missing-shard", files.join(folder, shard), message, {"shard": shard})
        )
    names = {tensor.name for tensor in checkpoint.tensors}
    names |= {alias for tensor in checkpoint.tensors for alias, _ in tensor.aliases}
    absent = [name for name, shard in mapping.items() if shard not in lost and name not in names]
    if absent:
        message = f"{len(absent)} tensors of the index are in no shard, the first is {absent[0]}"
        checkpoint.problems.append(Problem("missing-shard", path, message, {"tensors": absent[:20]}))


def _json(path: str, checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        source = files.open_source(path)
        value = json.loads(read_bytes(source, 0, source.size, _MOST_JSON))
        if isinstance(value, dict):
            return value
        raise ValueError("it is not a table")
    except (Unreadable, ValueError, RecursionError) as trouble:
        checkpoint.problems.append(Problem("damaged", path, f"{files.base(path)} cannot be read: {trouble}"))
        return {}


def step_from_name(checkpoint: Checkpoint) -> None:
    """Where nothing inside says the step: "step_1400.pt", "checkpoint-1400"."""
    found = _STEP_IN_NAME.findall(files.base(checkpoint.path))
    if checkpoint.step is None and found:
        checkpoint.step, checkpoint.step_from = int(found[-1][:18]), "its name"


def _interesting(checkpoint: Checkpoint) -> Callable[[int, Statistics], bool]:
    """Where zeros and negative values mean something: variances."""

    def wanted(index: int, stats: Statistics) -> bool:
        role = checkpoint.tensors[index].role
        low = stats.minimum if stats.minimum is not None else 0.0
        return (role == "running_var" and low <= 0) or (role in ("exp_avg_sq", "max_exp_avg_sq") and low < 0)

    return wanted


def measure_all(
    state: Sorted,
    *,
    jobs: int = 1,
    advance: Callable[[int], None] = lambda nbytes: None,
    only: Callable[[int], bool] | None = None,
) -> list[Measured]:
    """Statistics of every tensor on disk; with `only`, of those for which it is true (the rest: None)."""
    mine = [index for index in range(len(state.leaves)) if only is None or only(index)]
    refs = [leaf for leaf in (state.leaves[index] for index in mine) if isinstance(leaf, TensorRef)]
    wanted = _interesting(state.checkpoint)
    measured = measure(refs, jobs=jobs, count_signs=lambda i, stats: wanted(mine[i], stats), advance=advance)
    results: list[Measured] = [None] * len(state.leaves)
    for index, result in zip(mine, measured, strict=True):
        results[index] = result
    return results


def examine_state(state: Any, name: str = "state in memory") -> Checkpoint:
    """A `Checkpoint` of a state dict (or any nesting of dicts, lists and tensors) in this process."""
    into = Sorted(Checkpoint(name, format="in memory"))
    add_tree(into, state, name)
    live = [leaf for leaf in into.leaves if isinstance(leaf, LiveTensor)]
    finish(into, measure_live(live))
    into.checkpoint.nbytes = sum(tensor.nbytes for tensor in into.checkpoint.tensors)
    return into.checkpoint
