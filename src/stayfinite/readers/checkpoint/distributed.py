"""torch.distributed.checkpoint: a `.metadata` pickle and .distcp files that are torch files in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint import files, plain_pickle, torch_zip
from stayfinite.readers.checkpoint.contents import Contents, Opaque, Storage, TensorRef
from stayfinite.readers.checkpoint.source import Source, Unreadable, WindowSource, read_bytes

NAME = "torch distributed checkpoint"


def read_folder(folder: str, members: tuple[str, ...]) -> Contents:
    """The tree that was saved; a tensor in several chunks is a table of chunks."""
    metadata = next((path for path in members if files.base(path) == ".metadata"), None)
    if metadata is None:
        return _without_metadata(folder, members)
    described = plain_pickle.read(files.open_source(metadata)).root
    state = described.state if isinstance(described, Opaque) else None
    if not isinstance(state, Mapping) or not isinstance(state.get("storage_data"), Mapping):
        raise Unreadable(f"{metadata}: this is not the metadata of a distributed checkpoint")
    reader = _Items(folder, members)
    flat: dict[str, Any] = {}
    for index, where in state["storage_data"].items():
        name, value = reader.item(index, where)
        if name:
            flat[name] = value
    reader.report_missing(state.get("state_dict_metadata"))
    paths = state.get("planner_data")
    root = _nest(flat, paths if isinstance(paths, Mapping) else {})
    return Contents(NAME, root, reader.problems)


class _Items:
    def __init__(self, folder: str, members: tuple[str, ...]) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self._sources: dict[str, Source] = {}
        self._present = {files.base(path): path for path in members}
        self._missing: set[str] = set()
        self._chunks: dict[str, dict[str, Any]] = {}

    def item(self, index: Any, where: Any) -> tuple[str, Any]:
        """The name of an entry and its value; chunks of one tensor share one table."""
        place = where.state if isinstance(where, Opaque) and isinstance(where.state, Mapping) else {}
        entry = index.state if isinstance(index, Opaque) and isinstance(index.state, Mapping) else {}
        name, file = entry.get("fqn"), place.get("relative_path")
        offset, length = place.get("offset"), place.get("length")
        if (
            not isinstance(name, str)
            or not isinstance(file, str)
            or not isinstance(offset, int)
            or not isinstance(length, int)
        ):
            return "", None
        value = self._read(name, file, offset, length)
        chunk = entry.get("offset")
        if not isinstance(chunk, tuple) or not any(chunk):
            self._chunks.setdefault(name, {})[""] = value
        else:
            self._chunks.setdefault(name, {})[f"chunk at {list(chunk)}"] = value
        chunks = self._chunks[name]
        return name, chunks[""] if list(chunks) == [""] else chunks

    def _read(self, name: str, file: str, offset: int, length: int) -> Any:
        if file not in self._present:
            self._missing.add(file)
            gone = Storage(None, 0, 0, f"{file}@{offset}", trouble=f"the file {file} is missing")
            return TensorRef(gone, "uint8", (0,), (1,))
        if file not in self._sources:
            self._sources[file] = files.open_source(self._present[file])
        try:
            window = WindowSource(self._sources[file], offset, length)
            if read_bytes(window, 0, min(2, length)) != b"PK":
                return TensorRef(Storage(window, 0, length, f"{file}@{offset}"), "bytes", (length,), (1,))
            contents = torch_zip.read(window)
        except Unreadable as trouble:
            gone = Storage(None, 0, 0, f"{file}@{offset}", trouble=str(trouble))
            return TensorRef(gone, "uint8", (0,), (1,))
        return _apart(contents.root, f"{file}@{offset}")

    def report_missing(self, described: Any) -> None:
        for file in sorted(self._missing):
            message = f"the shard {file} is listed in .metadata and is not in the folder"
            self.problems.append(
                Problem("missing-shard", files.join(self.folder, file), message, {"shard": file})
            )
        lost = (
            [name for name in described if name not in self._chunks] if isinstance(described, Mapping) else []
        )
        if lost:
            message = f"{len(lost)} entries of the state have no data, the first is {lost[0]}"
            self.problems.append(Problem("missing-shard", self.folder, message, {"entries": lost[:10]}))


def _apart(value: Any, label: str) -> Any:
    """Each item has storages named 0, 1...: make the names different between items."""
    if not isinstance(value, TensorRef):
        return value
    return replace(value, storage=replace(value.storage, key=f"{label}:{value.storage.key}"))


def _without_metadata(folder: str, members: tuple[str, ...]) -> Contents:
    message = "the folder has no .metadata, so nothing says what its shards hold; the save was not completed"
    return Contents(
        NAME, {}, [Problem("missing-shard", folder, message, {"shard": ".metadata", "files": len(members)})]
    )


def _nest(flat: dict[str, Any], paths: Mapping[Any, Any]) -> Any:
    """Flat names back into the tree they came from."""
    root: dict[Any, Any] = {}
    for name, value in flat.items():
        path = paths.get(name)
        steps = path if isinstance(path, tuple) and path else (name,)
        at = root
        for step in steps[:-1]:
            inner = at.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            at = inner
        at[steps[-1]] = value
    return _lists(root)


def _lists(node: Any, depth: int = 0) -> Any:
    """Tables whose keys are 0, 1, 2... were lists."""
    if not isinstance(node, dict) or depth > 100:
        return node
    made = {key: _lists(value, depth + 1) for key, value in node.items()}
    if made and all(isinstance(key, int) for key in made) and sorted(made) == list(range(len(made))):
        return [made[number] for number in range(len(made))]
    return made
