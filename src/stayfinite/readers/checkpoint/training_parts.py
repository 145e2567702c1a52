"""Recognises optimizer, scheduler and scaler states by their shape, whatever the checkpoint calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stayfinite.findings.subjects.checkpoint import Group, Optimizer, Scaler, Scheduler

_SCHEDULER_MARKS = ("base_lrs", "_last_lr", "_schedulers", "T_max", "total_steps", "milestones")
_TOTALS = ("total_steps", "T_max", "total_iters", "num_training_steps", "max_iters")

# A number that may still be a tensor on disk: the second argument receives it once it is known.
Later = Callable[[Any, Callable[[float], None]], None]


def is_optimizer(node: Mapping[Any, Any]) -> bool:
    groups = node.get("param_groups")
    return (
        isinstance(groups, list) and all(isinstance(group, Mapping) for group in groups) and "state" in node
    )


def is_scaler(node: Mapping[Any, Any]) -> bool:
    return ("scale" in node and "growth_factor" in node) or "cur_scale" in node


def is_scheduler(node: Mapping[Any, Any]) -> bool:
    plateau = "num_bad_epochs" in node and "patience" in node
    return plateau or (
        ("last_epoch" in node or "_step_count" in node) and any(key in node for key in _SCHEDULER_MARKS)
    )


def optimizer(node: Mapping[Any, Any], name: str, file: str, later: Later) -> Optimizer:
    """Groups and counts; the tensors in `state` are visited by the caller."""
    found = Optimizer(name, file)
    state = node["state"]
    found.entries = len(state) if isinstance(state, Mapping) else 0
    for group in node["param_groups"]:
        found.groups.append(_group(group, later))
    if isinstance(state, Mapping):
        for parameter, entry in state.items():
            if isinstance(entry, Mapping) and "step" in entry:
                later(entry["step"], _step_setter(found, str(parameter)))
    for number, group in enumerate(node["param_groups"]):
        if "step" in group and not found.steps:  # apex keeps one count for a whole group
            later(group["step"], _step_setter(found, f"group {number}"))
    return found


def _step_setter(found: Optimizer, parameter: str) -> Callable[[float], None]:
    def put(value: float) -> None:
        found.steps[parameter] = value

    return put


def _group(group: Mapping[Any, Any], later: Later) -> Group:
    made = Group()
    names = group.get("param_names") or group.get("params") or []
    made.parameters = [str(item) for item in names] if isinstance(names, list) else []

    def setter(attribute: str) -> Callable[[float], None]:
        return lambda value: setattr(made, attribute, value)

    def option(key: str) -> Callable[[float], None]:
        return lambda value: made.options.__setitem__(key, value)

    for key, value in group.items():
        if key in ("lr", "initial_lr", "max_lr", "min_lr"):
            later(value, setter(key))
        elif key == "betas" and isinstance(value, (tuple, list)):
            for place, beta in enumerate(value[:3]):
                later(beta, option(f"beta{place + 1}"))
        elif key in ("eps", "weight_decay", "momentum", "dampening", "max_momentum", "base_momentum"):
            later(value, option(key))
    return made


def scheduler(node: Mapping[Any, Any], name: str, depth: int = 0) -> Scheduler:
    """The numbers of a scheduler, and of those it chains."""
    found = Scheduler(name, _scheduler_kind(node))
    found.base_lrs = _floats(node.get("base_lrs"))
    found.last_lr = _floats(node.get("_last_lr"))
    epoch = node.get("last_epoch")
    found.last_epoch = epoch if isinstance(epoch, int) else None
    for key in _TOTALS:
        total = node.get(key)
        if found.total is None and isinstance(total, int) and not isinstance(total, bool):
            found.total = total
    inner = node.get("_schedulers")
    if isinstance(inner, list) and depth < 4:
        for place, child in enumerate(inner[:64]):
            if isinstance(child, Mapping):
                found.inner.append(scheduler(child, f"{name}._schedulers.{place}", depth + 1))
    return found


def _scheduler_kind(node: Mapping[Any, Any]) -> str:
    """The class that leaves these keys."""
    if "_milestones" in node and "_schedulers" in node:
        return "SequentialLR"
    if "_schedulers" in node:
        return "ChainedScheduler"
    marks = {
        "total_steps": "OneCycleLR",
        "num_bad_epochs": "ReduceLROnPlateau",
        "T_0": "CosineAnnealingWarmRestarts",
        "T_max": "CosineAnnealingLR",
        "lr_lambdas": "LambdaLR",
        "start_factor": "LinearLR",
        "factor": "ConstantLR",
        "power": "PolynomialLR",
        "milestones": "MultiStepLR",
        "step_size": "StepLR",
        "gamma": "ExponentialLR",
    }
    return next((kind for key, kind in marks.items() if key in node), "scheduler")


def _floats(value: Any) -> list[float]:
    if not isinstance(value, (list, tuple)):
        return []
    return [float(item) for item in value if isinstance(item, (int, float)) and not isinstance(item, bool)]


def scaler(
    node: Mapping[Any, Any], name: str, file: str, later: Later, add: Callable[[Scaler], None]
) -> None:
    """A GradScaler's state, or DeepSpeed's loss scaler."""
    tracker = node.get("_growth_tracker", node.get("growth_tracker"))

    def put(value: float) -> None:
        add(Scaler(name, file, value, tracker if isinstance(tracker, int) else None))

    later(node.get("scale", node.get("cur_scale")), put)
