"""What the configuration rules share: where an entry stands, and the words that name the same setting."""

from __future__ import annotations

from typing import Any

from stayfinite.findings.subjects.config_file import ConfigFile, Entry

RATES = ("lr", "learning_rate", "base_lr", "lr0", "initial_lr", "peak_lr", "max_lr", "learningrate")
STEPS = ("steps", "max_steps", "total_steps", "train_steps", "num_steps", "total_num_steps", "num_training_steps",
         "max_iters", "total_iters", "iterations", "max_iterations")  # fmt: skip
EPOCHS = ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs", "total_epochs")
CLIPS = ("clip", "clip_norm", "grad_clip", "max_grad_norm", "gradient_clipping", "gradient_clip_val", "clip_grad",
         "clip_grad_norm", "grad_clip_norm", "max_norm")  # fmt: skip
EPSILONS = ("eps", "epsilon", "adam_epsilon", "adam_eps", "norm_eps", "layer_norm_eps", "rms_norm_eps",
            "layer_norm_epsilon", "batch_norm_eps", "optimizer_eps")  # fmt: skip

_BUILT_BY_NAME = ("type", "name", "_target_", "class_path")


def at(entry: Entry, *, value: bool = False) -> dict[str, Any]:
    """file, line and column of a finding; `value` points at the value instead of the key."""
    line, column = (entry.value_line, entry.value_column) if value else (entry.line, entry.column)
    return {"file": entry.file, "line": line or entry.line, "column": column or entry.column}


def shown(entry: Entry) -> str:
    """optim.lr: 1e-5"""
    return f"{entry.name}: {entry.text or entry.value}"


def place(other: Entry, entry: Entry) -> str:
    """Where another entry stands, as a finding about `entry` says it: its line, with the file if that is another."""
    return f"line {other.line}" if other.file == entry.file else f"{other.file}:{other.line}"


def edit(entry: Entry, replacement: str) -> dict[str, Any]:
    """An exact replacement of a scalar, for --fix."""
    if not entry.text or not entry.value_line:
        return {}
    old = entry.text
    return {
        "edit": {
            "line": entry.value_line,
            "column": entry.value_column,
            "end_column": entry.value_column + len(old),
            "old": old,
            "new": replacement,
        }
    }


def optimizer_of(config: ConfigFile) -> str:
    """The optimizer in lower case: named, or shown by its own settings; empty where nothing says."""
    for entry in config.find(
        "optimizer", "optim", "optimizer_type", "optimizer_name", "opt", *_BUILT_BY_NAME
    ):
        if isinstance(entry.value, str):
            text = entry.value.lower()
            named = entry.word not in _BUILT_BY_NAME or "optim" in entry.name.lower()
            if named and any(
                known in text for known in ("adam", "sgd", "lion", "adafactor", "rmsprop", "lamb", "muon")
            ):
                return text
    if config.first("betas", "beta1", "beta2", "adam_beta1", "adam_beta2", "adam_epsilon"):
        return "adam"
    if config.kind == "huggingface":
        return "adamw"
    return ""
