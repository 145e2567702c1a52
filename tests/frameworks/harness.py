"""The same training in four ways, guarded or not: what was reported, and what is left."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import train

from stayfinite import Guard, RunStopped

FRAMEWORKS = ("transformers", "lightning", "accelerate")


@dataclass
class Trained:
    """What came of a training."""

    net: Any = None
    guard: Any = None
    stopped: RunStopped | None = None
    warned: list[str] = field(default_factory=list)

    @property
    def incidents(self) -> list[dict[str, Any]]:
        return [
            json.loads(f.read_text()) for f in sorted(self.guard.run_dir.glob("incidents/*/incident.json"))
        ]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.guard.run_dir / "run.jsonl").read_text().splitlines()]

    @property
    def findings(self) -> list[str]:
        return [e["finding"]["code"] for e in self.events if e.get("event") == "finding"]

    @property
    def trainer(self) -> Any:
        return self.net.trainer[0]

    def weights(self) -> dict[str, torch.Tensor]:
        return self.net.state_dict()


def guarded(framework: str, case: str, folder: Path, **more: Any) -> Trained:
    """Train under guard: `guard.watch`, or the framework's callback."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {"run_dir": folder / "run", "policy": "skip", "quiet": True}
    trained = Trained()

    def watch(*parts: Any) -> Any:
        if len(parts) == 1:
            trained.guard = Guard.from_accelerator(*parts, **options)
        else:
            trained.guard = Guard(*parts, prove="off", **options)
        return trained.guard.watch

    if framework == "transformers":
        from stayfinite.integrations.transformers import StayFiniteCallback

        more["callbacks"] = [*more.get("callbacks", ()), callback := StayFiniteCallback(**options)]
    elif framework == "lightning":
        from stayfinite.integrations.lightning import StayFiniteCallback as LightningCallback

        more["callbacks"] = [*more.get("callbacks", ()), callback := LightningCallback(**options)]
    else:
        more["watch"] = watch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trained.net = train.FRAMEWORKS[framework](case, str(folder / "out"), **more)
        except RunStopped as stopped:
            trained.stopped = stopped
    if "callbacks" in more:
        trained.guard = callback.guard  # closed by the end of the training
    else:
        trained.guard.close()
    trained.warned = [str(w.message) for w in caught]
    return trained


def unguarded(framework: str, case: str, folder: Path, **more: Any) -> Trained:
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = train.FRAMEWORKS[framework](case, str(folder / "out"), **more)
    return Trained(net, warned=[str(w.message) for w in caught])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
