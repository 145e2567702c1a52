"""From a tree of names to a `Checkpoint`: which tensor is a weight, a buffer, a moment, an average...

The shape of the data decides first (an optimizer's state has `param_groups`), names second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Number, Problem, Statistics, Tensor
from stayfinite.readers.checkpoint import training_parts as parts
from stayfinite.readers.checkpoint.contents import Composite, Opaque, TensorRef
from stayfinite.readers.checkpoint.kinds import (
    is_model_section,
    kind_of_section,
    kind_of_tensor,
    without_average_prefix,
)
from stayfinite.readers.checkpoint.live import LiveTensor, plain_parts
from stayfinite.readers.checkpoint.match_moments import match_moments

Leaf = TensorRef | LiveTensor

_STEP_KEYS = (
    "global_step", "step", "global_steps", "iteration", "iter", "current_step", "num_updates", "steps",
)  # fmt: skip
_HIDDEN = ("_parameters", "_buffers", "_modules")
_DEEPEST = 100


@dataclass(slots=True)
class Sorted:
    """A checkpoint without statistics yet, and the tensors to measure (same order as `checkpoint.tensors`)."""

    checkpoint: Checkpoint
    leaves: list[Leaf] = field(default_factory=list)
    later: list[tuple[Any, Callable[[float], None]]] = field(default_factory=list)
    """Numbers that are kept as tensors of one element: known after measuring."""
    seen: dict[Any, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the tree the walk is."""

    path: tuple[str, ...]
    kind: Kind | None
    section: int = 0
    """How many parts of the path name the section (`model`, `ema.0`) rather than the tensor."""
    parameter: str | None = None

    def child(self, key: str, **change: Any) -> _Place:
        fields = {"kind": self.kind, "section": self.section, "parameter": self.parameter, **change}
        return _Place((*self.path, key) if key and key not in _HIDDEN else self.path, **fields)


def add_tree(into: Sorted, root: Any, file: str, prefix: str = "", kind: Kind | None = None) -> None:
    """Sort everything in `root` (the contents of one file) into the checkpoint."""
    _Walk(into, file).run(root, _Place((prefix,) if prefix else (), kind, 1 if prefix else 0))


class _Walk:
    def __init__(self, into: Sorted, file: str) -> None:
        self.into = into
        self.file = file
        self.stack: list[tuple[Any, _Place]] = []
        self.visited: dict[int, Any] = {}
        self.waiting: list[TensorRef] = []
        self.too_deep = False

    def run(self, root: Any, place: _Place) -> None:
        if isinstance(root, Mapping):
            self._read_progress(root)
        self.stack.append((root, place))
        while self.stack:
            self._visit(*self.stack.pop())
        for ref in self.waiting:  # numbers the walk did not pass, such as a rate that is a tensor
            if ref.identity not in self.into.seen:
                self._tensor(ref, _Place(("number",), Kind.OTHER))

    def _visit(self, node: Any, place: _Place) -> None:
        if isinstance(node, (TensorRef, LiveTensor)):
            self._tensor(node, place)
        elif isinstance(node, float):
            if not math.isfinite(node):
                kind = place.kind or Kind.OTHER
                self.into.checkpoint.numbers.append(Number(_name(place), self.file, kind, node))
        elif isinstance(node, Composite):
            self._children([(key, part, place.child(key)) for key, part in node.parts.items()])
        elif _is_live(node):
            found = [(key, LiveTensor(part), place.child(key)) for key, part in plain_parts(node).items()]
            self._children(found)
        elif isinstance(node, (Mapping, list, tuple, Opaque)) and self._first_visit(node):
            if len(place.path) < _DEEPEST:
                self._container(node, place)
            elif not self.too_deep:
                self.too_deep = True
                message = f"it is nested more than {_DEEPEST} levels deep; what lies deeper was not read"
                self.into.checkpoint.problems.append(Problem("damaged", self.file, message))

    def _first_visit(self, node: Any) -> bool:
        """Shared and circular containers are looked at once (and kept alive, so that their ids stay theirs)."""
        if id(node) in self.visited:
            return False
        self.visited[id(node)] = node
        return True

    def _container(self, node: Any, place: _Place) -> None:
        if isinstance(node, Mapping):
            self._mapping(node, place)
        elif isinstance(node, Opaque):
            if node.name == "numpy.ndarray" and "array" in node.mapping:
                self._children([("", node.mapping["array"], place)])
                return
            if isinstance(node.state, Mapping):
                self._mapping(node.state, place)
            elif node.state is not None:
                self.stack.append((node.state, place))
            if node.mapping:
                self._mapping(node.mapping, place)
            many = len(node.args) + len(node.items) > 1
            values = [*node.args, *node.items]
            self._children(
                [
                    (str(i) if many else "", item, place.child(str(i) if many else ""))
                    for i, item in enumerate(values)
                ]
            )
        else:
            section = (
                place.section + 1
                if place.kind is not None and place.section == len(place.path)
                else place.section
            )
            self._children(
                [(str(i), item, place.child(str(i), section=section)) for i, item in enumerate(node)]
            )

    def _mapping(self, node: Mapping[Any, Any], place: _Place) -> None:
        name = _name(place)
        checkpoint = self.into.checkpoint
        if parts.is_optimizer(node):
            checkpoint.optimizers.append(parts.optimizer(node, name or "optimizer", self.file, self._later))
            self._optimizer(node, place)
            return
        if parts.is_scaler(node):
            parts.scaler(node, name or "scaler", self.file, self._later, checkpoint.scalers.append)
            place = _Place(place.path, Kind.SCALER, place.section)
        elif parts.is_scheduler(node):
            checkpoint.schedulers.append(parts.scheduler(node, name or "scheduler"))
            place = _Place(place.path, Kind.SCHEDULER, place.section)
            node = {key: value for key, value in node.items() if key != "_schedulers"}
        mixed = not place.path and any(isinstance(value, (Mapping, list, Opaque)) for value in node.values())
        children: list[tuple[str, Any, _Place]] = []
        for raw, value in node.items():
            key = str(raw)
            children.append((key, value, self._child_place(place, key, value, mixed)))
        self._children(children)

    def _child_place(self, place: _Place, key: str, value: Any, mixed: bool) -> _Place:
        depth = len(place.path) + 1
        if key == "_buffers":
            return place.child(key, kind=Kind.BUFFERS if place.kind in (None, Kind.WEIGHTS) else place.kind)
        if key == "_parameters":
            return place.child(key, kind=Kind.WEIGHTS if place.kind in (None, Kind.BUFFERS) else place.kind)
        if key == "_modules":
            return place.child(key, kind=None if place.kind is Kind.BUFFERS else place.kind)
        if isinstance(value, (TensorRef, LiveTensor)) or _is_live(value) or place.kind is not None:
            if not mixed or place.kind is not None:
                return place.child(key)
            # Beside whole state dicts: a loss or a count, or a tensor the method keeps (a queue, a centre).
            return place.child(key, kind=Kind.BUFFERS if len(value.shape) else Kind.OTHER)
        kind = kind_of_section(key)
        if kind is not None or is_model_section(key):
            return place.child(key, kind=kind, section=depth)
        return place.child(key)

    def _children(self, children: list[tuple[str, Any, _Place]]) -> None:
        """In the order of the file: the stack is taken from its end."""
        self.stack.extend((value, place) for _, value, place in reversed(children))

    def _optimizer(self, node: Mapping[Any, Any], place: _Place) -> None:
        """Each tensor of the state belongs to one parameter; options of the groups are read elsewhere."""
        names = self.into.checkpoint.optimizers[-1].groups
        listed = [name for group in names for name in group.parameters]
        numbers = (
            {str(i): name for i, name in enumerate(listed)} if any(not n.isdigit() for n in listed) else {}
        )
        state = node["state"] if isinstance(node["state"], Mapping) else {}
        children: list[tuple[str, Any, _Place]] = []
        for raw, entry in state.items():
            key = str(raw)
            at = _Place((*place.path, "state", key), Kind.OPTIMIZER, place.section, numbers.get(key, key))
            children.append((key, entry, at))
        rest = {key: value for key, value in node.items() if key not in ("state", "param_groups")}
        children += [
            (str(k), v, _Place((*place.path, str(k)), Kind.OPTIMIZER, place.section)) for k, v in rest.items()
        ]
        self._children(children)

    def _tensor(self, leaf: Leaf, place: _Place) -> None:
        name = _name(place)
        kind = place.kind or kind_of_tensor(name, leaf.dtype)
        known = self.into.seen.get(leaf.identity)
        tensors = self.into.checkpoint.tensors
        if known is not None and leaf.numel:
            tensors[known].aliases.append((name, kind))
            return
        key = ".".join(place.path[place.section :]) or name
        role = (place.path[-1] if place.path else name).rpartition(".")[2]
        nbytes = (
            leaf.nbytes
            if isinstance(leaf, LiveTensor)
            else min(leaf.numel * leaf.item_size, leaf.storage.nbytes)
        )
        self.into.seen[leaf.identity] = len(tensors)
        self.into.leaves.append(leaf)
        tensors.append(
            Tensor(
                name or "tensor", self.file, kind, leaf.dtype, leaf.shape, leaf.numel, nbytes,
                parameter=place.parameter, role=role, key=without_average_prefix(key),
            )
        )  # fmt: skip

    def _later(self, value: Any, put: Callable[[float], None]) -> None:
        """Give `put` a number now, or once the tensor that holds it has been measured."""
        if isinstance(value, Opaque) and "array" in value.mapping:
            value = value.mapping["array"]
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, (int, float)):
            put(float(value))
        elif _is_live(value) and value.numel() == 1:
            put(float(value.item()))
        elif isinstance(value, TensorRef) and value.numel == 1:
            self.waiting.append(value)
            self.into.later.append((value.identity, put))

    def _read_progress(self, root: Mapping[Any, Any]) -> None:
        """The step and the epoch, from the top of the tree."""
        checkpoint = self.into.checkpoint

        def put_step(key: str) -> Callable[[float], None]:
            def put(value: float) -> None:
                if checkpoint.step is None and math.isfinite(value) and value >= 0:
                    checkpoint.step, checkpoint.step_from = int(value), key

            return put

        for key in _STEP_KEYS:
            if key in root:
                self._later(root[key], put_step(key))
        if checkpoint.epoch is None and isinstance(root.get("epoch"), (int, float)):
            checkpoint.epoch = float(root["epoch"])
        if checkpoint.world_size is None and isinstance(root.get("dp_world_size"), int):
            checkpoint.world_size = root["dp_world_size"]


def step_of(root: Any) -> int | None:
    """The step one file says it was written at, where it is a plain number."""
    found = [root[key] for key in _STEP_KEYS if key in root] if isinstance(root, Mapping) else []
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def finish(sorted_state: Sorted, measured: list[Statistics | str | None]) -> None:
    """Put the statistics into the checkpoint, and the numbers that were kept as tensors in their places."""
    checkpoint = sorted_state.checkpoint
    for tensor, result in zip(checkpoint.tensors, measured, strict=True):
        if isinstance(result, str):
            evidence = {"tensor": tensor.name, "shape": list(tensor.shape)}
            message = f"the tensor {tensor.name} cannot be read: {result}"
            checkpoint.problems.append(Problem("damaged", tensor.file, message, evidence))
        else:
            tensor.statistics = result
    for identity, put in sorted_state.later:
        stats = checkpoint.tensors[sorted_state.seen[identity]].statistics
        if stats is not None:
            put(math.nan if stats.bad or stats.minimum is None else stats.minimum)
    match_moments(checkpoint)
    if checkpoint.step is None and checkpoint.optimizers:
        steps = [optimizer.step for optimizer in checkpoint.optimizers if optimizer.step is not None]
        if steps:
            checkpoint.step, checkpoint.step_from = int(max(steps)), "the optimizer"


def _name(place: _Place) -> str:
    return ".".join(place.path)


def _is_live(value: Any) -> bool:
    """A torch tensor, without importing torch where nobody has."""
    return hasattr(value, "untyped_storage") and hasattr(value, "detach")
