"""What a framework runs for one micro-batch, brought to the guard: it can be called again with the same batch."""

from __future__ import annotations

from functools import partial
from typing import Any

from stayfinite.guarding.arguments import data_among
from stayfinite.guarding.loop import WatchedLoop


def around_framework_step(loop: WatchedLoop, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands around the calls of hooks.FRAMEWORK_STEPS."""
    again = partial(original, owner, *args, **kwargs)
    with loop.framework_step(again, _batch(owner, (*args, *kwargs.values()))):
        return again()


def _batch(owner: Any, args: tuple[Any, ...]) -> Any:
    """Of a Trainer's `training_step(model, inputs, ...)`; Lightning's closure has its arguments inside."""
    inside = getattr(owner, "_step_fn", None)
    data = data_among(inside.args if isinstance(inside, partial) else args)
    parts = data if isinstance(data, tuple) else (data,)
    parts = tuple(part["batch"] if isinstance(part, dict) and "batch" in part else part for part in parts)
    return parts[0] if len(parts) == 1 or isinstance(parts[0], dict) else parts
