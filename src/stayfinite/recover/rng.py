"""The state of every random generator a training step may draw from: Python, NumPy, torch and its devices."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


def _device_modules() -> list[tuple[str, Any]]:
    """The torch modules of the accelerators in use. An accelerator nobody has touched has no state to keep."""
    found: list[tuple[str, Any]] = []
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append(("cuda", torch.cuda))
    if torch.backends.mps.is_available():
        found.append(("mps", torch.mps))
    return found


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(slots=True, eq=False)
class RngState:
    """A moment of all generators. `restore` goes back to it."""

    python: tuple[Any, ...]
    torch_cpu: torch.Tensor
    numpy: dict[str, Any] | None
    devices: dict[str, list[torch.Tensor]]

    @classmethod
    def capture(cls) -> RngState:
        numpy = sys.modules.get("numpy.random")
        devices = {
            name: module.get_rng_state_all() if name == "cuda" else [module.get_rng_state()]
            for name, module in _device_modules()
        }
        return cls(
            python=random.getstate(),
            torch_cpu=torch.get_rng_state(),
            numpy=numpy.get_state(legacy=False) if numpy is not None else None,
            devices=devices,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RngState) and self._plain() == other._plain()

    __hash__ = None  # type: ignore[assignment]

    def _plain(self) -> tuple[Any, ...]:
        numpy = self.numpy
        return (
            self.python,
            self.torch_cpu.tolist(),
            None
            if numpy is None
            else repr({**numpy, "state": {k: _listed(v) for k, v in numpy["state"].items()}}),
            {name: [state.tolist() for state in states] for name, states in self.devices.items()},
        )

    def restore(self) -> None:
        random.setstate(self.python)
        torch.set_rng_state(self.torch_cpu)
        numpy = sys.modules.get("numpy.random")
        if self.numpy is not None and numpy is not None:
            numpy.set_state(self.numpy)
        for name, module in _device_modules():
            states = self.devices.get(name)
            if states is None:
                continue
            if name == "cuda":
                module.set_rng_state_all(states)
            else:
                module.set_rng_state(states[0])

    def to_saved(self) -> dict[str, Any]:
        """The same in types that `torch.load(weights_only=True)` reads."""
        numpy = None
        if self.numpy is not None:
            inner = self.numpy["state"]
            numpy = {
                **{key: value for key, value in self.numpy.items() if key != "state"},
                "state": {
                    key: torch.as_tensor(value) if key == "key" else value for key, value in inner.items()
                },
            }
        version, numbers, gauss = self.python
        return {
            # 625 numbers: much faster to write and read as one
            "python": (version, torch.tensor(numbers), gauss),
            "torch_cpu": self.torch_cpu,
            "numpy": numpy,
            "devices": self.devices,
        }

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> RngState:
        numpy = saved["numpy"]
        if numpy is not None:
            inner = {key: value.numpy() if key == "key" else value for key, value in numpy["state"].items()}
            numpy = {**numpy, "state": inner}
        version, numbers, gauss = saved["python"]
        return cls((version, tuple(numbers.tolist()), gauss), saved["torch_cpu"], numpy, saved["devices"])
