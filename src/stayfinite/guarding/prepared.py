"""What an Accelerator has prepared, as a Guard takes it. accelerate itself is not needed."""

from __future__ import annotations

from typing import Any


def prepared_parts(accelerator: Any) -> dict[str, Any]:
    """The arguments of a Guard. Raises ValueError where nothing was prepared yet."""
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    if not models or not accelerator._optimizers:
        raise ValueError(
            "Guard.from_accelerator: nothing was prepared yet; call accelerator.prepare(model, optimizer, ...) first"
        )
    return {
        "model": models[0] if len(models) == 1 else models,
        "optimizer": list(accelerator._optimizers),
        "scheduler": list(accelerator._schedulers),
        "scaler": accelerator.scaler,
    }
