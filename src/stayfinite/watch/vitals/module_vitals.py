"""ModuleVitals: forward hooks that exist for one sampled step and reduce what they see to scalars on the device."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from stayfinite.findings.subjects.outlook import FLOAT16_LIMIT, SQUARED_LIMIT, ModuleVital
from stayfinite.watch.vitals.shares import HALF, nonzero_and_normal

MOST_MODULES = 1024
_LEAVES = 4
_LIMITS = {torch.float16: FLOAT16_LIMIT, torch.bfloat16: SQUARED_LIMIT, torch.float32: SQUARED_LIMIT}
_NO_DOUBLES = ("mps",)
_MOST_CALLS = 256
"""Of one module in one step; what it does after them is not measured."""
_FEW = 4096
_SQUARES_FIT = 1e12
"""Up to this size a sum of squares fits into float32, which is ten times as fast to add up in as float64."""
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class _Size(NamedTuple):
    """Where the scalars of one measured tensor stand: smallest and largest value, then the norm."""

    at: int
    numel: int


class _Seen:
    """What was measured of one module in all of its calls; the largest counts."""

    __slots__ = ("dtype", "given", "kind", "made", "shares")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.dtype: torch.dtype = torch.float32
        self.given: list[_Size] = []
        self.made: list[_Size] = []
        self.shares: list[_Size] = []  # non-zeros, and normal numbers, in half outputs


class ModuleVitals:
    """`attach` before a forward pass, `detach` after it, then `scalars` and `told`. Nothing of the run is changed."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = weakref.WeakValueDictionary(models)
        self._order = list(models)
        self._handles: list[Any] = []
        self._seen: dict[str, _Seen] = {}
        self._known: dict[int, tuple[weakref.ref[Tensor], int, _Size]] = {}
        self._scalars: list[Tensor] = []
        self._wide = False
        self.seconds = 0.0
        self.trouble: str | None = None
        self.compiled: list[str] = []  # modules whose inside cannot be seen
        self.left_out = 0

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def attach(self) -> None:
        self.detach()
        self._seen, self._scalars, self.seconds = {}, [], 0.0
        began = time.perf_counter()
        for name, module in self._visible():
            kind = type(module).__name__
            handle = module.register_forward_hook(_Hook(self, name, kind), with_kwargs=True)
            self._handles.append(handle)
        self.seconds = time.perf_counter() - began

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._known = {}

    def _visible(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module once, outermost first; of a compiled one only the outside."""
        self.compiled, self.left_out = [], 0
        done: set[int] = set()
        count = 0
        for prefix in self._order:
            model = self._models.get(prefix)
            hidden: list[str] = []
            for path, module in model.named_modules() if model is not None else ():
                if id(module) in done or any(path == h or path.startswith(h) for h in hidden):
                    continue
                done.add(id(module))
                name = ".".join(part for part in (prefix, path) if part) or type(module).__name__
                if isinstance(module, torch.jit.ScriptModule) or _is_compiled(module):
                    self.compiled.append(name)
                    hidden.append(f"{path}." if path else "")
                if isinstance(module, torch.jit.ScriptModule):
                    continue
                count += 1
                if count > MOST_MODULES:
                    self.left_out += 1
                    continue
                yield name, module

    def saw(self, name: str, kind: str, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        """A module has computed. Whatever goes wrong here is ours, and must not become the script's failure."""
        if torch.compiler.is_compiling() or self.trouble is not None or not self._handles:
            return
        began = time.perf_counter()
        try:
            # Not `no_grad`: its exit is a function, and Ctrl-C as that begins would leave the user without gradients.
            with torch._C.DisableTorchFunction():
                self._measure(name, kind, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 - said once, and the run goes on without vitals
            self.trouble = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - began

    def _measure(self, name: str, kind: str, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        results = _tensors(output)
        if not results:
            return
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = _Seen(kind)
        if len(seen.made) >= _MOST_CALLS:
            return
        given = next(iter(_tensors(args) or _tensors(kwargs)), None)
        if given is not None:
            seen.given.append(self._size(given))
        seen.made += map(self._size, results)
        seen.dtype = results[0].dtype
        if seen.dtype in HALF:
            counts = nonzero_and_normal(results[0])
            seen.shares.append(_Size(len(self._scalars), counts.numel))
            self._scalars += counts.scalars

    def _size(self, tensor: Tensor) -> _Size:
        """Its extremes and its norm; what one module gives and the next one takes is measured once."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == _version(tensor):
            return known[2]
        size = _Size(len(self._scalars), tensor.numel())
        values = tensor.detach() if tensor.requires_grad else tensor
        if tensor.device.type in _NO_DOUBLES:
            largest = torch.linalg.vector_norm(values, math.inf)
            self._scalars += (largest, largest, torch.linalg.vector_norm(values, 2, dtype=torch.float32))
        else:
            wide = self._wide or tensor.dtype is torch.float64 or tensor.numel() <= _FEW
            norm = torch.linalg.vector_norm(values, 2, dtype=torch.float64 if wide else torch.float32)
            self._scalars += (*torch.aminmax(values), norm)  # many times faster than the norm of order inf
        self._known[id(tensor)] = (weakref.ref(tensor), _version(tensor), size)
        return size

    def scalars(self) -> list[Tensor]:
        """What `told` needs, on the device, in a fixed order."""
        return self._scalars

    def told(self, numbers: Sequence[float]) -> tuple[dict[str, ModuleVital], dict[str, float]]:
        """The modules, and the shares of zeros and subnormals in half outputs; `numbers` are those of `scalars`."""
        modules: dict[str, ModuleVital] = {}
        zeros: list[float] = []
        below: list[float] = []
        for name, seen in self._seen.items():
            largest, rms = _largest(seen.made, numbers)
            given, given_rms = _largest(seen.given, numbers) if seen.given else (None, None)
            for at, numel in seen.shares:
                zeros.append(1 - numbers[at] / numel)
                below.append((numbers[at] - numbers[at + 1]) / numel)
            gain = rms / given_rms if given_rms and math.isfinite(given_rms) and math.isfinite(rms) else None
            peak = given if seen.dtype is torch.float16 else None
            modules[name] = ModuleVital(largest, rms, gain, seen.kind, _LIMITS.get(seen.dtype), peak)
        shares = {"outputs": max(zeros), "subnormal outputs": max(below)} if zeros else {}
        sizes = [vital.max for vital in modules.values()]
        self._wide = not all(size < _SQUARES_FIT for size in sizes)  # from the next sample on
        return modules, shares


def _largest(sizes: Sequence[_Size], numbers: Sequence[float]) -> tuple[float, float]:
    """Largest magnitude and largest rms of what was measured; NaN if there is one."""
    ends = [abs(numbers[size.at + end]) for size in sizes for end in (0, 1)]
    means = [numbers[size.at + 2] / math.sqrt(size.numel) for size in sizes]
    largest = math.nan if any(map(math.isnan, ends)) else max(ends)
    return largest, math.nan if any(map(math.isnan, means)) else max(means)


class _Hook:
    """A forward hook of one module. It can be copied and pickled with its module, and then does nothing."""

    def __init__(self, vitals: ModuleVitals | None, name: str, kind: str) -> None:
        self._vitals, self._name, self._kind = vitals, name, kind

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        if self._vitals is not None:
            self._vitals.saw(self._name, self._kind, args, kwargs, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self._name, self._kind)


def _is_compiled(module: nn.Module) -> bool:
    return (
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
    )


def _tensors(values: Any) -> list[Tensor]:
    """The floating tensors with memory of their own among them, at most a few."""
    leaves = [values] if isinstance(values, Tensor) else tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and _measurable(leaf)][:_LEAVES]


def _measurable(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and not _is_wrapped(tensor)
    )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else int(tensor._version)
