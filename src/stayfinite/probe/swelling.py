"""Where a gradient that is finite but absurd grew: the call whose inputs get far more gradient than its output."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from stayfinite.findings.subjects.probed_model import Located
from stayfinite.probe.sites import line_of_user
from stayfinite.replay.sites import Site

_LEAST = 1e3
"""A factor smaller than this is no place to point at: the growth is spread over many lines."""

_CAUSES = {
    "normalize": "NORMALIZE_ZERO_VECTOR",
    "norm": "NORMALIZE_ZERO_VECTOR",
    "cosine_similarity": "NORMALIZE_ZERO_VECTOR",
    "sqrt": "SQRT_POW_GRAD_AT_ZERO",
    "rsqrt": "SQRT_POW_GRAD_AT_ZERO",
    "pow": "SQRT_POW_GRAD_AT_ZERO",
    "log": "LOG_DOMAIN",
    "exp": "EXP_OVERFLOW",
    "acos": "INVTRIG_BOUNDARY",
    "asin": "INVTRIG_BOUNDARY",
    "atanh": "INVTRIG_BOUNDARY",
}
"""What it means that a gradient grows a thousandfold and more at this call; others are left unexplained."""


@dataclass(slots=True)
class _Call:
    name: str
    site: Site
    inputs: list[int]
    output: int
    tensors: list[Tensor] = field(default_factory=list)  # kept, so that their ids stay theirs


class Swelling(TorchFunctionMode):
    """Enter it around forward and backward; `located` then says where the gradient grew most."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._gradients: dict[int, float] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.requires_grad and (site := line_of_user()) is not None:
            given = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
            fresh = [a for a in given if id(a) not in self._gradients and a is not result]
            for tensor in (*fresh, *([result] if id(result) not in self._gradients else [])):
                self._follow(tensor)
            name = getattr(func, "__name__", "")
            self._calls.append(_Call(name, site, [id(a) for a in given], id(result), [*given, result]))
        return result

    def _follow(self, tensor: Tensor) -> None:
        key = id(tensor)
        self._gradients[key] = 0.0

        def note(gradient: Tensor) -> None:
            largest = float(gradient.detach().abs().max()) if gradient.numel() else 0.0
            self._gradients[key] = max(self._gradients[key], largest)

        tensor.register_hook(note)  # type: ignore[no-untyped-call]

    def located(self) -> Located:
        best, factor = None, _LEAST
        for call in self._calls:
            outgoing = self._gradients.get(call.output, 0.0)
            incoming = max((self._gradients.get(key, 0.0) for key in call.inputs), default=0.0)
            if outgoing > 0 and math.isfinite(incoming) and incoming / outgoing > factor:
                best, factor = call, incoming / outgoing
        if best is None:
            return Located()
        return Located(
            op=best.name.strip("_"),
            file=best.site.file,
            line=best.site.line,
            source=best.site.source,
            phase="backward",
            cause=_CAUSES.get(best.name.strip("_")),
            message=f"the gradient grows {factor:.3g} times here",
        )
