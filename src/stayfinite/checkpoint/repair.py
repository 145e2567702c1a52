"""A new checkpoint whose poisoned tensors come from a good one. The original is never changed.

The file is copied and the bytes of the poisoned tensors are replaced in the copy, so everything else (rates,
random state, objects that only the user's own code can load) stays exactly as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stayfinite.checkpoint.verify import CheckpointVerdict, judge
from stayfinite.findings.subjects.checkpoint import Kind, Tensor
from stayfinite.readers.checkpoint import Location, Unreadable, locate, measure_all, read_structure
from stayfinite.readers.checkpoint.contents import TensorRef
from stayfinite.readers.checkpoint.pieces import whole
from stayfinite.readers.checkpoint.sort_state import Sorted, finish
from stayfinite.readers.checkpoint.source import FileSource, WindowSource
from stayfinite.readers.checkpoint.zip_checksums import correct_checksums

if TYPE_CHECKING:
    import torch


class RepairRefused(Exception):
    """The checkpoint cannot or should not be repaired; the text says why and what to do."""


@dataclass(slots=True)
class Repair:
    """What was done."""

    output: str
    replaced: list[str] = field(default_factory=list)
    share: float = 0.0
    verdict: CheckpointVerdict | None = None


def repair(bad: Location, good: Location, output: str, *, most: float = 0.5, jobs: int = 1) -> Repair:
    """Write `output`: `bad` with its poisoned tensors, and the moments that belong to them, taken from `good`.

    Refuses when more than the share `most` of all values would be replaced, when `good` is not healthy or lacks a
    tensor, and when the result is not healthy. `output` appears only once it has been verified.
    """
    if os.path.lexists(output):
        raise RepairRefused(f"{output} exists already; choose another name")
    for given in (bad, good):
        if Path(given.path).resolve() in Path(output).resolve().parents:
            raise RepairRefused(
                f"{output} lies inside {given.path}, which stays as it is; choose another place"
            )
    source, donor = _measured(bad, jobs), _measured(good, jobs)
    chosen = poisoned(source.checkpoint.tensors)
    if not chosen:
        raise RepairRefused(f"{bad.path} has no NaN or Inf in any tensor; there is nothing to repair")
    total = sum(tensor.numel for tensor in source.checkpoint.tensors if tensor.floating)
    share = sum(source.checkpoint.tensors[index].numel for index in chosen) / max(total, 1)
    if share > most:
        raise RepairRefused(
            f"{share:.0%} of all values would come from {good.path}, more than the {most:.0%} allowed: go back to "
            "that checkpoint instead, or raise --max-share"
        )
    pairs = [
        (source.leaves[index], _donor(source.checkpoint.tensors[index], donor, good)) for index in chosen
    ]
    target = Path(output)
    partial = target.with_name(f".stayfinite-{os.getpid()}-{target.name}")
    try:
        place = _copy(bad, partial)
        _overwrite(pairs, bad, place)
        verdict = judge(_again(bad, place), jobs=jobs)
        if not verdict.healthy:
            raise RepairRefused(f"the result would still be bad: {verdict.findings[0].message}")
        _appear(partial, target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    names = [source.checkpoint.tensors[index].name for index in chosen]
    return Repair(output, names, share, verdict)


def _appear(partial: Path, target: Path) -> None:
    """Give the result its name, unless somebody has taken that in the meantime."""
    try:
        if partial.is_dir():
            target.mkdir()  # fails where something is; an empty folder may be renamed over
            partial.rename(target)
        else:
            os.link(partial, target)
    except FileExistsError as error:
        raise RepairRefused(f"{target} exists already; choose another name") from error
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise
        partial.rename(target)


def poisoned(tensors: Sequence[Tensor]) -> list[int]:
    """Bad tensors; with a weight all its moments, with one moment all moments of the same weight."""
    bad = [i for i, t in enumerate(tensors) if t.statistics and t.statistics.bad and not t.additive_mask]
    weights = {tensors[i].name for i in bad if tensors[i].kind is Kind.WEIGHTS}
    owners = {tensors[i].parameter for i in bad if tensors[i].kind is Kind.OPTIMIZER} | weights
    moments = [i for i, t in enumerate(tensors) if t.kind is Kind.OPTIMIZER]
    known = {tensors[i].parameter or "" for i in moments}
    nameless = any(name.isdigit() for name in known)
    if nameless and any(name not in known for name in weights):
        chosen = set(moments)  # nothing says which moments belong to the weight: all of them go back together
    else:
        chosen = {i for i in moments if tensors[i].parameter in owners and tensors[i].parameter is not None}
    return sorted(chosen | set(bad))


def _measured(location: Location, jobs: int) -> Sorted:
    try:
        state = read_structure(location)
    except (Unreadable, OSError) as trouble:
        raise RepairRefused(str(trouble)) from trouble
    finish(state, measure_all(state, jobs=jobs))
    return state


def _donor(tensor: Tensor, donor: Sorted, good: Location) -> TensorRef:
    """The same tensor in the good checkpoint: by name, or by kind and name inside its state dict."""
    pairs = list(zip(donor.checkpoint.tensors, donor.leaves, strict=True))
    same = [pair for pair in pairs if pair[0].name == tensor.name]
    same = same or [pair for pair in pairs if (pair[0].kind, pair[0].key) == (tensor.kind, tensor.key)]
    for found, leaf in same:
        if not isinstance(leaf, TensorRef) or found.shape != tensor.shape:
            continue
        if found.statistics is None or found.statistics.bad:
            raise RepairRefused(f"{tensor.name} is bad in {good.path} too; take an older checkpoint")
        return leaf
    raise RepairRefused(f"{good.path} has no tensor {tensor.name} of shape {list(tensor.shape)}")


def _copy(bad: Location, partial: Path) -> Path:
    partial.parent.mkdir(parents=True, exist_ok=True)
    place = Path(bad.path)
    if place.is_dir():
        shutil.copytree(place, partial)
    elif place.is_file():
        shutil.copyfile(place, partial)
    else:
        raise RepairRefused(f"{bad.path}: only a local file or folder can be repaired")
    return partial


def _again(bad: Location, place: Path) -> Location:
    """The copy, laid out as the original."""
    if place.is_dir():
        return locate([str(place)])[0]
    return replace(bad, path=str(place), files=(str(place),))


def _overwrite(pairs: Sequence[tuple[Any, TensorRef]], bad: Location, place: Path) -> None:
    changed: dict[tuple[Path, tuple[int, int]], set[int]] = {}
    for old, new in pairs:
        if not isinstance(old, TensorRef):
            raise RepairRefused("a tensor in memory cannot be repaired; save it first")
        file, offset = _position(old)
        copy = place / Path(file).relative_to(bad.path) if place.is_dir() else place
        _write(old, new, copy, offset)
        if old.storage.archive is not None:
            changed.setdefault((copy, old.storage.archive), set()).add(offset)
    for (copy, archive), offsets in changed.items():
        correct_checksums(copy, archive, offsets)


def _position(ref: TensorRef) -> tuple[str, int]:
    """The file and the byte where the tensor's storage starts."""
    source = ref.storage.source
    if isinstance(source, WindowSource) and isinstance(source.inner, FileSource):
        return source.inner.name, source.start + ref.storage.offset
    if isinstance(source, FileSource):
        return source.name, ref.storage.offset
    raise RepairRefused("the tensor is inside a compressed or remote file; unpack or copy it first")


def _write(old: TensorRef, new: TensorRef, file: Path, offset: int) -> None:
    """Put the values of `new` where those of `old` are, whatever the order of either in memory."""
    if old.swapped:
        raise RepairRefused(f"{file.name} has the byte order of another machine; save it again first")
    reach = old.extent
    span = whole(replace(old, shape=(reach,), stride=(1,))).clone()
    values = whole(new).to(span.dtype)
    view = span.as_strided(list(old.shape), list(old.stride))
    if 0 in old.stride:
        raise RepairRefused("a tensor that repeats one value (expanded) cannot be repaired")
    view.copy_(values)
    with file.open("r+b") as handle:
        handle.seek(offset + old.start * old.item_size)
        handle.write(_bytes(span))


def _bytes(values: torch.Tensor) -> bytes:
    """The raw bytes of a contiguous tensor; numpy may be absent."""
    import ctypes

    return ctypes.string_at(values.data_ptr(), values.nbytes)
