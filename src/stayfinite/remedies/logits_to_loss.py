"""The logarithm of a probability that another function made: computed from the logits, which the loss does not see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.log_space import LogSpace
from stayfinite.remedies.remedy import Case, Remedy

_MADE: Final = ("sigmoid", "softmax")
_NEAR: Final = 12
_LARGEST_EPS: Final = 1e-4
_SAME_VALUES: Final = frozenset({"gather", "squeeze", "unsqueeze", "diagonal", "diag", "view", "reshape", "flatten",
                                 "transpose", "permute", "t", "index_select", "take_along_dim", "select", "narrow",
                                 "expand", "contiguous", "__getitem__", "clone", "float", "to", "swapaxes", "view_as",
                                 "masked_select", "type", "double"})  # fmt: skip
_TO_LOG: Final = {"log": 1.0, "log2": 1 / math.log(2), "log10": 1 / math.log(10)}


class LogitsToLoss(Remedy):
    """Probabilities keep their logarithm beside them, made of the logits; a logarithm that is taken later is that."""

    name = "logits-to-loss"
    sentence = (
        "give the loss the logits and compute the logarithm from them: logsigmoid, log_softmax, "
        "binary_cross_entropy_with_logits, cross_entropy"
    )
    kinds = frozenset({Kind.LOG_OF_ZERO, Kind.EPS_VANISHED, Kind.ZERO_TIMES_INF})
    rank = 3  # behind what is a patch
    universal = True  # where log space itself fits, it is the same cure in another form, and no control

    def fits(self, case: Case) -> bool:
        """A probability was rounded to 0 or 1, and where its logarithm is taken nothing is left to compute it from."""
        if case.kind not in self.kinds or not self.can_act(case):
            return False
        return case.site is None or not LogSpace().edits(case)

    def can_act(self, case: Case) -> bool:
        made = [o for o in case.birth.operands if o.made_by(*_MADE, within=_NEAR) is not None]
        return bool(made) and case.op in _TO_LOG

    def applied(self) -> AbstractContextManager[None]:
        return _remembered()


@contextmanager
def _remembered() -> Iterator[None]:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils.weak import WeakIdKeyDictionary

    functional = torch.nn.functional

    class Remembering(TorchFunctionMode):
        """The logarithms of tensors, and of 1 minus them, as far as they are known."""

        def __init__(self) -> None:
            super().__init__()
            self._logs: Any = WeakIdKeyDictionary()
            self._of_rest: Any = WeakIdKeyDictionary()  # log(1 - p)

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            first = args[0] if args else kwargs.get("input")
            if not isinstance(first, torch.Tensor):
                return func(*args, **kwargs)
            if name in _TO_LOG and first in self._logs:
                return self._logs[first] * _TO_LOG[name] if name != "log" else self._logs[first]
            result = func(*args, **kwargs)
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                self._note(name, first, func, args, kwargs, result)
            return result

        def _note(self, name: str, first: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            logs, rest = self._logs, self._of_rest
            if name == "sigmoid":
                logs[result], rest[result] = functional.logsigmoid(first), functional.logsigmoid(-first)
            elif name == "softmax":
                logs[result] = functional.log_softmax(first, *args[1:2], **_only(kwargs, "dim"))
            elif name in ("rsub", "__rsub__") and _number(args) == 1 and first in rest:
                logs[result] = rest[first]
                if first in logs:
                    rest[result] = logs[first]
            elif name in ("add", "__add__", "__radd__") and _is_eps(args) and first in logs:
                logs[result] = logs[first]
            elif name in _SAME_VALUES:
                for known in (logs, rest):
                    if first in known:
                        known[result] = func(known[first], *args[1:], **_only_others(kwargs))
            elif name in ("mul", "__mul__") and len(args) == 2 and first in logs and args[1] in logs:
                logs[result] = logs[first] + logs[args[1]]
            elif name == "sum" and first in logs and (args[1:] or "dim" in kwargs):
                logs[result] = torch.logsumexp(logs[first], *args[1:], **_only(kwargs, "dim", "keepdim"))
            elif name == "prod" and first in logs and (args[1:] or "dim" in kwargs):
                logs[result] = torch.sum(logs[first], *args[1:], **_only(kwargs, "dim", "keepdim"))

    with Remembering():
        yield


def _only(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def _only_others(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "input"}


def _number(args: Any) -> float | None:
    other = args[1] if len(args) > 1 else None
    return float(other) if isinstance(other, (int, float)) and not isinstance(other, bool) else None


def _is_eps(args: Any) -> bool:
    number = _number(args)
    return number is not None and 0 < number <= _LARGEST_EPS
