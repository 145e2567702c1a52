"""`--preset conservative|ultra`: a patch of the configuration towards settings that rarely fail.

The factors are those of the troubleshooting reports this project started from: conservative halves the learning rate
and clips at 1, ultra takes a tenth, clips at 0.5 and goes back to float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stayfinite.findings.subjects.config_file import ConfigFile, Entry
from stayfinite.lint.fix import Change

_RATES = ("lr", "learning_rate", "max_lr", "base_lr", "peak_lr", "lr0")
_CLIPS = (
    "clip",
    "clip_norm",
    "grad_clip",
    "max_grad_norm",
    "gradient_clipping",
    "gradient_clip_val",
    "clip_grad_norm",
)
_WARMUPS = ("warmup_steps", "warmup", "num_warmup_steps", "warmup_iters")
_TOTALS = ("steps", "max_steps", "total_steps", "train_steps", "max_iters")


@dataclass(frozen=True, slots=True)
class Preset:
    """How far each setting moves."""

    rate_factor: float
    clip: float
    warmup_factor: float
    half: str  # what becomes of float16: bf16, or no half precision at all


PRESETS = {
    "conservative": Preset(0.5, 1.0, 1.0, "bf16"),
    "ultra": Preset(0.1, 0.5, 2.0, "no"),
}


@dataclass(frozen=True, slots=True)
class Move:
    """One setting, old and new, and why."""

    entry: Entry
    new: str
    why: str


def moves(config: ConfigFile, preset: Preset) -> list[Move]:
    """What the preset would change; settings that are safe already stay."""
    found: list[Move] = []
    for entry in config.entries:
        if entry.section or not entry.text or entry.file != config.path:
            continue
        move = _move(config, entry, preset)
        if move is not None and move.new != entry.text:
            found.append(move)
    return found


def _move(config: ConfigFile, entry: Entry, preset: Preset) -> Move | None:
    word, value = entry.word, entry.number
    if value is not None and word in _RATES and value > 0:
        return Move(entry, _number(value * preset.rate_factor), f"learning rate x {preset.rate_factor:g}")
    if value is not None and word in _CLIPS and (value <= 0 or value > preset.clip):
        return Move(entry, _number(preset.clip), f"clip at {preset.clip:g}")
    if value is not None and word in _WARMUPS and value > 0 and preset.warmup_factor != 1:
        total = config.beside(entry, *_TOTALS)
        longest = 0.1 * total.number if total is not None and total.number else value * preset.warmup_factor
        new = min(value * preset.warmup_factor, max(longest, value))
        return Move(entry, str(int(new)), "a longer warm-up, at most a tenth of the run")
    if value is not None and "temperature" in word and "epoch" not in word:
        floor = 0.04 if "teacher" in entry.name.lower() else 0.05
        if 0 <= value < floor:
            return Move(entry, _number(floor), "the temperature's floor")
    if value is not None and word == "min_loss_scale" and value < 1:
        return Move(entry, "1", "a floor for the loss scale")
    return _precision(entry, preset)


def _precision(entry: Entry, preset: Preset) -> Move | None:
    text = str(entry.value).lower()
    if entry.word in ("mixed_precision", "precision") and text in ("fp16", "float16", "16", "16-mixed"):
        named = {"fp16": "bf16", "float16": "bfloat16", "16": "bf16-mixed", "16-mixed": "bf16-mixed"}
        full = {"fp16": "no", "float16": "float32", "16": "32", "16-mixed": "32-true"}
        return Move(
            entry, (named if preset.half == "bf16" else full)[text], "no float16: its range ends at 65504"
        )
    if preset.half == "no" and entry.word in ("bf16", "fp16", "amp") and entry.value is True:
        return Move(
            entry, "False" if entry.text == "True" else "false", "full precision until the run is stable"
        )
    if (
        preset.half == "no"
        and entry.word in ("mixed_precision", "precision")
        and text in ("bf16", "bfloat16")
    ):
        return Move(entry, "no" if text == "bf16" else "float32", "full precision until the run is stable")
    return None


def _number(value: float) -> str:
    """A number that PyYAML reads as one: with a dot, and a sign in the exponent."""
    text = f"{value:.6g}"
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent):+d}"
    return text if "." in text else f"{text}.0"


def patched(config: ConfigFile, preset: Preset) -> Change | None:
    """The configuration with the preset's moves, as a change that can be shown as a diff."""
    lines = config.text.splitlines(keepends=True)
    count = 0
    for move in sorted(
        moves(config, preset), key=lambda m: (m.entry.value_line, m.entry.value_column), reverse=True
    ):
        line, start = move.entry.value_line - 1, move.entry.value_column - 1
        old = move.entry.text
        if move.entry.quoted:
            start += 1
        if not 0 <= line < len(lines) or lines[line][start : start + len(old)] != old:
            continue
        lines[line] = lines[line][:start] + move.new + lines[line][start + len(old) :]
        count += 1
    after = "".join(lines)
    if not count:
        return None
    return Change(Path(config.path), config.text.encode(), after.encode(), count, ())
