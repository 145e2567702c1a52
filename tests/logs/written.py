"""One training, written by real loggers: the same numbers in every format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

STEPS, FAILS = 120, 90


def record(step: int, fails: int = FAILS) -> dict[str, float]:
    """Loss and norm of a run that breaks at step `fails`; the norm climbs before."""
    if step >= fails:
        return {"step": step, "loss": math.nan, "grad_norm": math.inf, "lr": 1e-3}
    near = max(0, step - fails + 20)
    return {"step": step, "loss": 2 / (step + 1) + 0.5, "grad_norm": 1.0 * 1.4**near, "lr": 1e-3}


RECORDS = [record(step) for step in range(STEPS)]


def json_lines(path: Path, records: Sequence[dict[str, Any]] = RECORDS) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def run_record(path: Path) -> Path:
    """As `Guard` writes it: non-finite numbers as strings, a list of rates, nested components."""
    lines: list[dict[str, Any]] = [{"event": "start", "state_bytes": 100}]
    for one in RECORDS:
        bad = not math.isfinite(one["loss"])
        lines.append(
            {"step": one["step"], "loss": "nan" if bad else one["loss"], "components": {}, "lr": [1e-3], "scale": None,
             "grad_norm": "inf" if bad else one["grad_norm"], "action": "skip" if bad else "none"}
        )  # fmt: skip
    return json_lines(path, lines)


def trainer_state(path: Path) -> Path:
    """The schema of transformers' TrainerState."""
    history = [
        {"epoch": one["step"] / 100, "grad_norm": one["grad_norm"], "learning_rate": one["lr"], "loss": one["loss"],
         "step": one["step"]}
        for one in RECORDS
    ]  # fmt: skip
    history.append({"epoch": 1.2, "step": STEPS, "total_flos": 1e15, "train_loss": 0.0, "train_runtime": 9.9})
    state = {"best_metric": None, "epoch": 1.2, "global_step": STEPS, "is_world_process_zero": True,
             "log_history": history, "logging_steps": 1, "max_steps": STEPS, "num_train_epochs": 3,
             "save_steps": 500}  # fmt: skip
    path.write_text(json.dumps(state, indent=2))
    return path


def tensorboard(folder: Path) -> Path:
    writer = SummaryWriter(folder)
    for one in RECORDS:
        for name in ("loss", "grad_norm", "lr"):
            writer.add_scalar(name, one[name], int(one["step"]))
    writer.add_text("config", "lr: 1e-3")
    writer.close()
    return next(folder.glob("*tfevents*"))


def lightning_csv(path: Path) -> Path:
    """As CSVLogger writes it: a column for each name ever logged, empty where a step has no value."""
    rows = ["epoch,grad_norm,lr,loss,step,val_loss"]
    for one in RECORDS:
        rows.append(f"0,{one['grad_norm']},{one['lr']},{one['loss']},{int(one['step'])},")
        if one["step"] % 50 == 49:
            rows.append(f"0,,,,{int(one['step'])},0.9")
    path.write_text("\n".join(rows) + "\n")
    return path


def tab_separated(path: Path) -> Path:
    rows = ["iter\tloss\tgrad_norm\tlr"]
    rows += [f"{int(r['step'])}\t{r['loss']}\t{r['grad_norm']}\t{r['lr']}" for r in RECORDS]
    path.write_text("\n".join(rows) + "\n")
    return path


def printed(path: Path) -> Path:
    """print() and logging: several styles are one line each."""
    lines = ["Using device cuda:0", "Loading data from /data/v2 ..."]
    lines += [f"2026-03-01 12:00:{int(r['step']) % 60:02d},123 INFO trainer: step {int(r['step'])}/1000 | "
              f"loss: {r['loss']:.4f} | grad_norm: {r['grad_norm']:.6g} | lr {r['lr']:.1e} | 3.2 it/s"
              for r in RECORDS]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def printed_dicts(path: Path) -> Path:
    """What the Hugging Face Trainer prints."""
    lines = [str(one) for one in RECORDS]
    path.write_text("\n".join(lines) + "\n")
    return path


def tqdm_bar(path: Path) -> Path:
    """A bar that is redrawn in place, with colours."""
    parts = [
        f"\r\x1b[32mtraining\x1b[0m:  {int(r['step'])}%|#####     | {int(r['step'])}/120 [00:12<01:30,  9.71it/s, "
        f"grad_norm={r['grad_norm']:.6g}, loss={r['loss']:.3g}, lr={r['lr']:.3g}]"
        for r in RECORDS
    ]
    path.write_text("".join(parts) + "\n")
    return path


WRITERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "JSON lines": ("train.jsonl", json_lines),
    "stayfinite run.jsonl": ("run.jsonl", run_record),
    "trainer_state.json": ("trainer_state.json", trainer_state),
    "TensorBoard events": ("tb", tensorboard),
    "CSV": ("metrics.csv", lightning_csv),
    "CSV, tabs": ("log.tsv", tab_separated),
    "text": ("train.log", printed),
    "text, dicts": ("out.log", printed_dicts),
    "text, tqdm": ("bar.log", tqdm_bar),
}
