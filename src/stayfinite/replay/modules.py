"""Which module is running, and what a parameter or buffer is called in the model it belongs to."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from stayfinite.replay.measure import is_plain, shape_of, stored

_INPUTS_KEPT = 8


class ModuleStack:
    """The modules whose forward is running now, outermost first."""

    def __init__(self) -> None:
        self._stack: list[torch.nn.Module] = []
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._of_loader: int | None = None
        self._of_model: int | None = None
        self._time_first = False
        self._sizes: Counter[int] = Counter()  # of batches so far
        self.inputs: list[weakref.ref[torch.Tensor]] = []  # data given to models (or losses) lately

    def watch(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._stack = [], []

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not self._stack:
            self.roots.add(module)
            first = next((a for a in args if isinstance(a, torch.Tensor) and _of_samples(a)), None)
            # A loss module may be given heads, pairs or classes first; a model is given samples.
            if first is not None and (self._of_model is None or _has_parameters(module)):
                self._of_model = int(first.shape[0])
                self._sizes.update([self._of_model] if self._of_loader is None else [])
                second = int(first.shape[1]) if first.dim() > 1 else None
                self._time_first = second == self._of_loader != self._of_model
            data = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point() and a.dim() > 0]
            fresh = [weakref.ref(a) for a in data if not a.requires_grad]
            self.inputs = (self.inputs + fresh)[-_INPUTS_KEPT:]
        self._stack.append(module)

    def _leave(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        while self._stack and self._stack.pop() is not module:
            continue

    def note_batch(self, tensors: Sequence[torch.Tensor]) -> None:
        """What a DataLoader hands out: the first dimension that most of its tensors share is the batch."""
        sizes = [shape[0] for tensor in tensors if (shape := shape_of(tensor))]
        if sizes:
            self._of_loader = max(sizes, key=sizes.count)
            self._sizes[self._of_loader] += 1

    @property
    def of_loader(self) -> int | None:
        """Samples in what a DataLoader handed out last."""
        return self._of_loader

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch: the loader's, unless the model is given parts of it. None for steps of time first."""
        loader, model = self._of_loader, self._of_model
        if loader and model is not None and (self._time_first or (model > loader and model % loader)):
            return None
        return loader if loader and (model is None or model % loader == 0) else model

    @property
    def usual_size(self) -> int | None:
        """How many samples the other batches hold, if this one holds a single one; None if most do."""
        (usual, _), *_ = self._sizes.most_common(1) or [(1, 0)]
        return usual if usual > 1 and self.batch_size == 1 else None

    def path(self) -> str | None:
        """Model.block.2.attention for the innermost running module."""
        if not self._stack:
            return None
        root, here = self._stack[0], self._stack[-1]
        paths = self._paths.get(root)
        if paths is None or id(here) not in paths:
            paths = {id(module): name for name, module in root.named_modules()}
            self._paths[root] = paths
        inner = paths.get(id(here), type(here).__name__)
        return f"{type(root).__name__}.{inner}" if inner else type(root).__name__


def _of_samples(tensor: torch.Tensor) -> bool:
    """A single row of numbers (one observation of an environment) is no batch; a row of indices may be one."""
    dims = len(shape_of(tensor))
    return dims > 1 or (dims == 1 and not tensor.is_floating_point())


def _has_parameters(module: torch.nn.Module) -> bool:
    """As torch finds them: a script may have a `parameters()` of its own, which gives a list or wants arguments."""
    return next(torch.nn.Module.parameters(module), None) is not None


class Names:
    """Names of parameters and buffers, found by the tensor itself or by its memory (`p.data` is another object)."""

    def __init__(self, models: list[torch.nn.Module]) -> None:
        # Weak, because a number or an address may belong to another tensor once the model is gone.
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, str]]] = {}
        self._memory: dict[tuple[int, int], int] = {}
        for model in models:
            for name, parameter in model.named_parameters():
                self._add(parameter, ("parameter", name))
            for name, buffer in model.named_buffers():
                self._add(buffer, ("buffer", name))

    def _add(self, tensor: torch.Tensor, name: tuple[str, str]) -> None:
        self._names.setdefault(id(tensor), (weakref.ref(tensor), name))
        values = stored(tensor)
        if is_plain(values) and values.numel():
            self._memory.setdefault((values.data_ptr(), values.numel()), id(tensor))

    def find(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """("parameter", "head.weight"), or None."""
        known = self._names.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if not is_plain(tensor) or not tensor.numel():
            return None
        place = (tensor.data_ptr(), tensor.numel())
        known = self._names.get(self._memory.get(place, -1))
        owner = known[0]() if known is not None else None
        values = stored(owner) if owner is not None else None
        same = values is not None and is_plain(values) and (values.data_ptr(), values.numel()) == place
        return known[1] if known is not None and same else None
