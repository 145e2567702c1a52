"""Read a configuration of any format into a ConfigFile, and say what kind it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stayfinite.findings.subjects.config_file import ConfigFile, Entry
from stayfinite.readers.config import hydra_folder, json_file, python_file, toml_file, yaml_file
from stayfinite.readers.config.nodes import Collected, UnreadableConfig
from stayfinite.readers.source.read import UnreadableSource, read_text
from stayfinite.readers.source.suppressions import suppressions

_READERS: dict[str, tuple[str, Callable[[str, str], Collected]]] = {
    ".yaml": ("yaml", yaml_file.read),
    ".yml": ("yaml", yaml_file.read),
    ".json": ("json", json_file.read),
    ".toml": ("toml", toml_file.read),
    ".py": ("python", python_file.read),
}
_TRAINING_WORDS = frozenset(
    [
        "lr", "learning_rate", "max_lr", "base_lr", "min_lr", "batch", "batch_size", "train_batch_size",
        "per_device_train_batch_size", "epochs", "num_epochs", "num_train_epochs", "max_epochs", "steps",
        "max_steps", "total_steps", "train_steps", "optimizer", "optim", "weight_decay", "warmup",
        "warmup_steps", "warmup_epochs", "warmup_ratio", "clip", "clip_norm", "grad_clip", "max_grad_norm",
        "gradient_clipping", "gradient_clip_val", "fp16", "bf16", "amp", "mixed_precision", "precision",
        "temperature", "eps", "adam_epsilon", "betas", "beta1", "beta2", "gradient_accumulation_steps",
        "accumulation", "train_micro_batch_size_per_gpu", "zero_optimization", "distributed_type", "ema",
        "dropout", "scheduler", "lr_scheduler", "loss_scale", "min_loss_scale",
    ]
)  # fmt: skip


_AMBIGUOUS = frozenset(("batch", "steps", "optim", "precision", "eps", "clip", "ema", "amp", "scheduler", "epochs",
                        "temperature", "warmup", "accumulation", "dropout"))  # fmt: skip


def read_config(path: Path) -> ConfigFile:
    """Read one file; a Hydra-style defaults list is followed into the files it names."""
    try:
        text = read_text(path)
    except UnreadableSource as trouble:
        raise UnreadableConfig(str(trouble)) from trouble
    return read_config_text(text, path)


def read_config_text(text: str, path: Path) -> ConfigFile:
    known = _READERS.get(path.suffix)
    if known is None:
        raise UnreadableConfig(f"{path}: not a configuration format (.yaml, .json, .toml, .py)")
    form, reader = known
    collected = reader(text, str(path))
    config = ConfigFile(
        str(path), form, "training", text, collected.entries, collected.duplicates,
        suppressed=suppressions(text.splitlines()),
    )  # fmt: skip
    if form == "yaml":
        for group, inner in hydra_folder.defaults_of(collected.entries, text, path):
            try:
                brought = yaml_file.read(read_text(inner), str(inner))
            except (UnreadableSource, UnreadableConfig):
                continue  # the file itself is named when it is linted
            config.entries += hydra_folder.under(group, brought.entries)
            config.kind = "hydra"
    if config.kind == "training":
        config.kind = "hydra" if form == "yaml" and _is_omegaconf(config) else _kind(config.entries)
    return config


def _is_omegaconf(config: ConfigFile) -> bool:
    """Interpolations and classes to be built by name are OmegaConf's, whose YAML reads 1e-5 as a number."""
    return any(
        entry.path[-1] in ("_target_", "_component_")
        or (isinstance(entry.value, str) and "${" in entry.value)
        for entry in config.entries
        if entry.path
    )


def _kind(entries: list[Entry]) -> str:
    top = {entry.word for entry in entries if len(entry.path) == 1}
    if top & {"zero_optimization", "train_micro_batch_size_per_gpu"} or (
        "fp16" in {e.word for e in entries if e.section} and "optimizer" in top
    ):
        return "deepspeed"
    if top & {"distributed_type", "compute_environment", "main_process_port"}:
        return "accelerate"
    if top & {"per_device_train_batch_size", "num_train_epochs"} or {"output_dir", "learning_rate"} <= top:
        return "huggingface"
    return "training"


def is_training_config(config: ConfigFile) -> bool:
    """Something in it is about training; package manifests, workflows and data are not."""
    words = {entry.word for entry in config.entries}
    found = words & _TRAINING_WORDS
    return config.kind != "training" or bool(found - _AMBIGUOUS) or len(found) >= 2
