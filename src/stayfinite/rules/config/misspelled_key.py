"""CFG012: a key one slip away from a well-known one."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import at

KNOWN = frozenset(
    [
        "learning_rate", "weight_decay", "batch_size", "train_batch_size", "per_device_train_batch_size",
        "per_device_eval_batch_size", "gradient_accumulation_steps", "max_grad_norm", "gradient_clipping",
        "gradient_clip_val", "num_train_epochs", "num_epochs", "max_epochs", "max_steps", "total_steps",
        "warmup_steps", "warmup_ratio", "warmup_epochs", "lr_scheduler", "lr_scheduler_type", "optimizer",
        "momentum", "dropout", "temperature", "student_temperature", "teacher_temperature", "precision",
        "mixed_precision", "label_smoothing", "label_smoothing_factor", "adam_beta1", "adam_beta2",
        "adam_epsilon", "save_steps", "eval_steps", "logging_steps", "output_dir", "gradient_checkpointing",
        "num_workers", "hidden_size", "num_layers", "num_heads", "zero_optimization", "loss_scale",
        "min_loss_scale", "initial_scale_power", "hysteresis", "loss_scale_window",
        "train_micro_batch_size_per_gpu", "distributed_type", "num_processes", "num_machines", "ema_decay",
        "evaluate_every", "checkpoint_every", "accumulation", "scheduler", "min_lr", "max_lr", "base_lr",
        "epochs",
    ]
)  # fmt: skip

_OTHER_WORDS = frozenset(("optimize", "optimized", "patch_size", "output_dim", "max_step", "num_head"))


class MisspelledKey(Rule[ConfigFile]):
    """A key is one slip of the keyboard away from a well-known one that is not set.

    ## What it finds
    a key that differs from a well-known setting by one swapped, missing, doubled or wrong letter, where the
    well-known one is not in the same section and is no word of its own. In files of the Hugging Face
    trainer, DeepSpeed and Accelerate also singular and plural.

    ## Why it is bad
    Most loaders ignore what they do not know. The run then uses the default, and the file says otherwise.

    ## Example
    `learing_rate: 1.0e-4`

    ## The fix
    Correct it; let the loader refuse unknown keys.

    ## The popular fix that does not work
    Printing the configuration at the start: the misspelled key is printed too, and looks right.

    ## References
    transformers HfArgumentParser, OmegaConf structured configs (both refuse unknown keys)
    """

    code = "CFG012"
    name = "misspelled-key"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        strict = subject.kind in ("huggingface", "deepspeed", "accelerate")
        sections: dict[tuple[str, ...], set[str]] = {}
        for entry in subject.entries:
            sections.setdefault(entry.path[:-1], set()).add(entry.word)
        for entry in subject.entries:
            word = entry.word
            if word in KNOWN or word in _OTHER_WORDS or len(word) < 6:
                continue
            meant = next(
                (known for known in _candidates(word) if known not in sections[entry.path[:-1]]), None
            )
            if meant is None or (
                not strict and {word, meant} == {meant.rstrip("s"), meant.rstrip("s") + "s"}
            ):
                continue
            yield self.finding(
                f"{entry.name!r} looks like a misspelling of {meant!r}",
                fix=f"write {meant}, or let the loader refuse unknown keys",
                evidence={"key": entry.name, "meant": meant},
                **at(entry),
            )


_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    letter: "".join(other[max(0, place - 1) : place + 2] for other in _ROWS[max(0, row - 1) : row + 2])
    for row, keys in enumerate(_ROWS)
    for place, letter in enumerate(keys)
}


def _candidates(word: str) -> Iterator[str]:
    """Well-known keys at a distance of one slip."""
    for known in KNOWN:
        if abs(len(known) - len(word)) <= 1 and len(known) >= 6 and _one_slip(word, known):
            yield known


def _one_slip(a: str, b: str) -> bool:
    """One letter wrong, missing, added, or two neighbours swapped; digits must agree."""
    if [c for c in a if c.isdigit()] != [c for c in b if c.isdigit()]:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    if len(a) == len(b):
        beside = b[start] in _NEIGHBOURS.get(a[start], "")  # patch_size is no slip of batch_size
        rest = beside and a[start + 1 :] == b[start + 1 :]
        swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
        return rest or swapped
    shorter, longer = sorted((a, b), key=len)
    return shorter[start:] == longer[start + 1 :]
