"""The table of hook points: what can be heard, from which attribute of torch, and what is lost without it."""

from __future__ import annotations

import importlib
import sys
import weakref
from dataclasses import dataclass
from typing import Any

from stayfinite.hooks.point import Around, HookPoint, Listening


@dataclass(frozen=True, slots=True)
class Hook:
    """One attribute that is listened to. `owner` is imported when somebody listens."""

    event: str
    owner: str  # module, or module:Class
    name: str
    lost: str  # what a run without this name does without
    framework: bool = False  # of a framework: listened to only where the script has imported it itself


_OPTIMIZER, _SCALER = "torch.optim.optimizer:Optimizer", "torch.amp.grad_scaler:GradScaler"
_WHO_READ = "telling that a script looked at a bad value and went on"
_STEPS = "calling a framework's own step again"
_AUTOMATIC, _MANUAL = "loops.optimization.automatic:Closure", "loops.optimization.manual:_ManualOptimization"

HOOKS: tuple[Hook, ...] = (
    Hook(
        "batch",
        "torch.utils.data.dataloader:_BaseDataLoaderIter",
        "__next__",
        "steps that begin with a batch",
    ),
    Hook("autocast", "torch.amp.autocast_mode:autocast", "__enter__", "the effective precision"),
    Hook("backward", "torch.autograd", "backward", "the loss, and all guarding of ordinary loops"),
    Hook("grad", "torch.autograd", "grad", "gradient penalties of scaled losses"),
    Hook("clip", "torch.nn.utils", "clip_grad_norm_", "findings about clipping"),
    Hook("clip", "torch.nn.utils.clip_grad", "clip_grad_norm_", "findings about clipping"),
    Hook(
        "total_norm",
        "torch.nn.utils.clip_grad",
        "_get_total_norm",
        "sharing the norm with clipping: one more pass",
    ),
    Hook("optimizer_made", _OPTIMIZER, "__init__", "guarding optimizers of unchanged scripts"),
    Hook("optimizer_load", _OPTIMIZER, "load_state_dict", "findings about resumed optimizers"),
    Hook("optimizer_read", _OPTIMIZER, "state_dict", "knowing a state that was only read and loaded again"),
    Hook("scaler_made", _SCALER, "__init__", "findings about loss scales"),
    Hook("scale", _SCALER, "scale", "the loss before it is scaled"),
    Hook("unscale", _SCALER, "unscale_", "findings about the order of unscale and clip"),
    Hook("scaler_step", _SCALER, "step", "steps that a GradScaler skips"),
    Hook("scaler_update", _SCALER, "update", "findings about collapsing loss scales"),
    Hook("scaler_load", _SCALER, "load_state_dict", "findings about loss scales lost on resume"),
    Hook("scale_read", _SCALER, "get_scale", "telling penalties that take the scale out"),
    Hook("module_load", "torch.nn.modules.module:Module", "load_state_dict", "findings about loaded weights"),
    Hook("deepcopy", "copy", "deepcopy", "knowing averages and replicas"),
    Hook("warning", "warnings", "showwarning", "showing a warning of torch at the line of the user's code"),
    Hook(
        "spawn",
        "torch.multiprocessing.spawn",
        "start_processes",
        "saying that processes which a script starts itself are not guarded",
    ),
    Hook("file_load", "torch", "load", "findings about checkpoint files"),
    Hook("file_save", "torch", "save", "findings about what a checkpoint leaves out"),
    Hook("safetensors_save", "safetensors.torch", "save_file", "fire drills of safetensors checkpoints"),
    Hook("number_read", "torch:Tensor", "item", _WHO_READ),
    Hook("number_read", "torch:Tensor", "__float__", _WHO_READ),
    *(
        Hook("number_checked", owner, name, _WHO_READ)
        for owner in ("torch", "torch:Tensor")
        for name in ("isfinite", "isnan", "isinf")
    ),
    Hook(
        "distribution",
        "torch.distributions:Distribution",
        "__init__",
        "parameters that a distribution refused",
    ),
    *(
        Hook("softmax", owner, "softmax", "the largest attention logit")
        for owner in ("torch", "torch:Tensor", "torch.nn.functional")
    ),
    Hook("attention", "torch.nn.functional", "scaled_dot_product_attention", "the largest attention logit"),
    *(
        Hook("exponential", owner, "exp", "forecasts about exponentials")
        for owner in ("torch", "torch:Tensor")
    ),
    Hook("library_check", "torch", "normal", "errors that torch raises about values"),
    Hook(
        "library_check", "torch.nn.functional", "_verify_batch_size", "errors that torch raises about values"
    ),
    Hook("library_check", "torch.nn.functional", "cross_entropy", "errors that torch raises about values"),
    Hook("library_check", "torch.nn.functional", "embedding", "errors that torch raises about values"),
    Hook(
        "library_check",
        "torch.optim.lr_scheduler:OneCycleLR",
        "get_lr",
        "errors that torch raises about values",
    ),
    *(
        Hook("library_check", "torch.linalg", name, "errors that torch raises about values")
        for name in ("cholesky", "inv", "solve", "eigh", "svd")
    ),
    Hook("library_check", _SCALER, "unscale_", "errors that torch raises about values"),
    Hook("library_check", _SCALER, "step", "errors that torch raises about values"),
    Hook("binary_target", "torch.nn.functional", "binary_cross_entropy_with_logits", "targets beyond 0..1"),
    Hook(
        "fast_path", "torch.overrides", "has_torch_function", "a traced evaluation that rounds as a plain one"
    ),
    # One micro-batch of a framework: forward and backward pass.
    Hook("transformers_step", "transformers.trainer:Trainer", "training_step", _STEPS, framework=True),
    *(
        Hook(event, f"{package}.{owner}", name, _STEPS, framework=True)
        for event, package in (("lightning_step", "lightning.pytorch"), ("pl_step", "pytorch_lightning"))
        for owner, name in ((_AUTOMATIC, "closure"), (_MANUAL, "advance"))
    ),
    *(
        Hook(
            "accelerate_loader",
            f"accelerate.data_loader:{kind}",
            "__iter__",
            "knowing which of the batches that are read ahead is trained on",
            framework=True,
        )
        for kind in ("DataLoaderShard", "DataLoaderDispatcher")
    ),
)

FRAMEWORK_STEPS = ("transformers_step", "lightning_step", "pl_step")
"""Events `around(original, owner, *args, **kwargs)`: a framework runs forward and backward of one micro-batch."""

_SCHEDULER_EVENTS = {"scheduler_made": "__init__", "schedule": "step", "scheduler_load": "load_state_dict"}

_points: dict[tuple[int, str], HookPoint] = {}
_of_objects: weakref.WeakKeyDictionary[Any, dict[str, HookPoint]] = weakref.WeakKeyDictionary()
_missing: dict[str, str] = {}


def listen(event: str, around: Around) -> Listening:
    """Hear every call that is such an event; nothing is left behind if a part of it cannot be listened to."""
    listening = Listening()
    try:
        for owner, name in _attributes(event):
            point = _points.setdefault((id(owner), name), HookPoint(owner, name))
            listening.add(point.listen(around))
    except BaseException:
        listening.stop()
        raise
    return listening


def listen_to(owner: Any, name: str, around: Around) -> Listening:
    """Hear the calls of one method of one object: the step of an optimizer."""
    of_owner = _of_objects.setdefault(owner, {})
    return of_owner.setdefault(name, HookPoint(owner, name)).listen(around)


def listen_if_lost(owner: Any, name: str, around: Around) -> Listening:
    """Hear a method that was listened to until somebody replaced it; else nothing is done."""
    point = _of_objects.get(owner, {}).get(name)
    return HookPoint(owner, name).listen(around) if point is not None and point.is_lost else Listening()


def imported(event: str) -> bool:
    """Whether the framework that this event is of is there to be listened to."""
    return all(_owner(hook) is not None for hook in HOOKS if hook.event == event)


def missing() -> list[str]:
    """Sentences on what the installed torch, or framework, does not let us hear."""
    return [f"{name} is not in the installed version: {lost} is off" for name, lost in _missing.items()]


def _attributes(event: str) -> list[tuple[Any, str]]:
    if event in _SCHEDULER_EVENTS:
        name = _SCHEDULER_EVENTS[event]
        return [(kind, name) for kind in _scheduler_classes() if name in vars(kind)]
    hooks = [hook for hook in HOOKS if hook.event == event]
    if not hooks:
        raise ValueError(f"there is no event {event!r} in the table of hooks")
    found = []
    for hook in hooks:
        owner = _owner(hook)
        if owner is not None and hasattr(owner, hook.name):
            found.append((owner, hook.name))
        elif not hook.framework or owner is not None:
            _missing[f"{hook.owner}.{hook.name}"] = hook.lost
    return found


def _owner(hook: Hook) -> Any:
    module, _, name = hook.owner.partition(":")
    try:
        owner = sys.modules.get(module) if hook.framework else importlib.import_module(module)
    except ImportError:
        return None
    return getattr(owner, name, None) if name else owner


def _scheduler_classes() -> list[type]:
    """torch's own; each is listened to where it defines the method itself."""
    from torch.optim import Optimizer, lr_scheduler

    return [
        kind
        for kind in vars(lr_scheduler).values()
        if isinstance(kind, type) and hasattr(kind, "load_state_dict") and not issubclass(kind, Optimizer)
    ]
