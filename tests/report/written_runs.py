"""Run folders as other parts of the product write them: for tests of what reads them. `python written_runs.py DIR`."""
# ruff: noqa: E501

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{7*191}}'\"`"

SOURCE = """import torch


class Block(torch.nn.Module):
    def forward(self, x):
        y = self.inner(x)
        return torch.sigmoid(self.a) * x + y.sum(1, keepdim=True)


def loss_of(model, batch):
    z = model(batch)
    return torch.exp(z).mean()
"""


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    loss = 2.4 * math.exp(-step / 300) + 0.2 * math.sin(step * 1.7) ** 2
    return {
        "step": step,
        "loss": loss,
        "components": {"reconstruction": loss * 0.8, "kl": loss * 0.2},
        "grad_norm": 1.0 + 0.5 * math.sin(step / 9),
        "lr": [3e-4 * min(1.0, (step + 1) / 50), 1e-4],
        "scale": 65536.0 / 2 ** (step // 400),
        "update_ratio": 1e-3 * (1.1 + math.cos(step / 5)),
        "observed": {"logits": [-3.0 - step / 100, 4.0 + step / 50]},
        "seconds": 0.01,
        "memory_mb": 321.5,
        "action": "none",
        **changes,
    }


def vitals(step: int, modules: int = 12) -> dict[str, Any]:
    peaks = [2.0 * 1.6**depth * 1.004**step for depth in range(modules)]
    return {
        "event": "vitals",
        "step": step,
        "modules": {f"blocks.{i}": [peak, peak / 7, 1.6] for i, peak in enumerate(peaks)},
        "groups": [
            {"weight norm": 30.0 + step / 100, "update / weight": 1e-3, "gradient / sqrt(v)": 0.9},
            {"weight norm": 2.0, "update / weight": 5e-4, "gradient / sqrt(v)": 1.2},
        ],
        "headroom": 65504.0 / peaks[-1],
        "zeros": {"outputs": 0.12, "subnormal outputs": 0.4},
        "logits": 4.0 + step / 100,
        "exponents": {"model.py:12": 1.0 + step / 50},
    }


def forecast(step: int, low: int, high: int) -> dict[str, Any]:
    return {
        "event": "forecast",
        "step": step,
        "steps_left": [low, high],
        "limit": 65504,
        "what": "the output of `blocks.11` grows 0.4 % a step and 1.6 times a block",
        "modules": ["blocks.9", "blocks.10", "blocks.11"],
    }


def incident(file: Path | str, *, step: int = 400, **changes: Any) -> dict[str, Any]:
    """With every part that an incident may have."""
    return {
        "schema": 1,
        "step": step,
        "phase": "forward",
        "trigger": "loss",
        "reproduced": True,
        "blame": "state",
        "birth": {
            "op": "aten.exp.default", "call": "torch.exp", "file": str(file), "line": 12,
            "source": "return torch.exp(z).mean()", "function": "loss_of", "module": "head", "kind": "inf",
            "nan": 0, "inf": 3, "numel": 4096, "first_index": [17, 3], "dtype": "float16", "samples": [17, 20, 31],
            "inputs": [
                {"name": "self", "shape": [64, 64], "dtype": "float16", "min": -41.5, "max": 91.0, "zeros": 12,
                 "nan": 0, "inf": 0,
                 "histogram": {"low": -4, "high": 2, "negative": [0, 1, 8, 90, 800, 300], "positive": [1, 3, 20, 200, 1500, 800]}},
                {"name": "other", "shape": [], "dtype": "float32", "min": None, "max": None, "zeros": 0, "nan": 1, "inf": 0},
            ],
        },
        "path": [
            {"op": "aten.exp.default", "file": str(file), "line": 12, "module": "head"},
            {"op": "aten.mean.default", "file": str(file), "line": 12, "module": "head"},
            {"op": "aten.add.Tensor", "file": "train.py", "line": 80, "module": None},
            {"op": "aten.mul.Tensor", "file": "train.py", "line": 81, "module": None},
        ],
        "history": [step_line(s) for s in range(max(0, step - 20), step)],
        "findings": [
            {"code": "NUM003", "name": "exp-overflow", "cause": "EXP_OVERFLOW", "severity": "error", "confidence": 0.93,
             "file": str(file), "line": 12, "message": "exp of 3 values above 11.09, the limit of float16",
             "evidence": {"limit": 11.09, "above": 3, "largest": 91.0}, "fix": "use `torch.logsumexp`, or run exp in float32",
             "patch": "--- a/model.py\n+++ b/model.py\n@@ -10,3 +10,3 @@\n     z = model(batch)\n-    return torch.exp(z).mean()\n+    return torch.logsumexp(z, 0)\n",
             "proof": {"remedy": "log-space", "finite": True, "loss": 2.31, "distortion": 1e-7, "tried": 3}},
            {"code": "RUN014", "name": "one-batch-jump", "cause": "SPIKE", "severity": "warning", "confidence": 0.6,
             "file": None, "line": None, "message": "the loss jumped in one step", "evidence": {}, "fix": "look at the batch",
             "patch": None, "proof": None},
        ],
        "tried": [
            {"remedy": "log-space", "verdict": "proved", "finite": True, "distortion": 1e-7},
            {"remedy": "float32", "verdict": "finite, but other values changed", "finite": True, "distortion": 0.2},
            {"remedy": "drop samples 17, 20, 31", "verdict": "does not help", "finite": False, "distortion": None},
        ],
        "growth": {
            "by_depth": [
                {"module": f"blocks.{i}", "gain": 1.05 if i % 3 else 2.25, "rms": 0.3 * 1.8**i, "max": 2.0 * 1.9**i}
                for i in range(10)
            ],
            "by_time": [{"step": s, "max": 6.0 * 1.3 ** (s - step + 20)} for s in range(step - 20, step)],
        },
        "test": "def test_it():\n    assert loss_of(model, batch).isfinite()\n",
        "action": "skip",
        "environment": {"torch": "2.13.0", "python": "3.11.7", "device": "cpu"},
        **changes,
    }  # fmt: skip


def write_lines(run_dir: Path, lines: list[dict[str, Any]]) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "run.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def write_incident(run_dir: Path, number: str, data: dict[str, Any]) -> Path:
    folder = run_dir / "incidents" / number
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text(json.dumps(data, indent=2), encoding="utf-8")
    return folder


def full_run(run_dir: Path, steps: int = 1200) -> Path:
    """Everything a page can show: two incidents, skips, a rollback, a forecast, vitals."""
    source = run_dir / "model.py"
    run_dir.mkdir(parents=True, exist_ok=True)
    source.write_text(SOURCE, encoding="utf-8")
    lines: list[dict[str, Any]] = [
        {"event": "start", "step": 0, "environment": {"torch": "2.13.0", "device": "cpu", "threads": 1}, "state_bytes": 9},
        {"event": "finding", "step": 0, "finding": {
            "code": "STA003", "name": "half-without-master", "severity": "warning", "message": "weights are float16 only",
            "fix": "keep float32 weights"}},
    ]  # fmt: skip
    for step in range(steps):
        if step in (400, 401, 402):
            lines.append({"event": "incident", "step": step, "incident": "0001", "times": step - 399})
            lines.append(step_line(step, loss="inf", grad_norm="nan", action="skip", what="the loss is inf"))
        elif step == 800:
            lines.append({"event": "incident", "step": step, "incident": "0002", "times": 1})
            lines.append({"event": "rollback", "step": step, "what": "went back to the copy of step 780"})
            lines.append(
                step_line(step, loss="nan", grad_norm="-inf", action="rollback", what="the loss is nan")
            )
        else:
            lines.append(step_line(step))
        if step % 20 == 0:
            lines.append(vitals(step))
        if step == steps - 100:
            lines += [forecast(step, 140, 260), forecast(step + 5, 130, 190)]
    write_lines(run_dir, lines)
    write_incident(run_dir, "0001", incident(source))
    write_incident(
        run_dir,
        "0002",
        incident("gone.py", step=800, trigger="gradient", phase="backward", tried=[], growth={}),
    )
    return run_dir


def hostile_run(run_dir: Path) -> Path:
    """The same with names, sources and messages that try to be markup."""
    data = incident(HOSTILE)
    birth = data["birth"]
    for key in ("call", "op", "function", "module", "source", "dtype"):
        birth[key] = HOSTILE
    birth["inputs"][0]["name"] = HOSTILE
    data["path"][0] = {"op": HOSTILE, "file": HOSTILE, "line": 3, "module": HOSTILE}
    for key in ("code", "name", "message", "fix", "patch"):
        data["findings"][0][key] = HOSTILE
    data["findings"][0]["evidence"] = {HOSTILE: HOSTILE}
    data["growth"]["by_depth"][0]["module"] = HOSTILE
    data["tried"][0]["remedy"] = HOSTILE
    data["environment"] = {HOSTILE: HOSTILE, "command": HOSTILE}
    data["test"] = HOSTILE
    lines = [
        {"event": "start", "step": 0, "environment": {HOSTILE: HOSTILE}},
        *(step_line(s, components={HOSTILE: 1.0, "b": 2.0}, observed={HOSTILE: [0, 1]}) for s in range(50)),
        {"event": HOSTILE, "step": 50, "what": HOSTILE},
        {
            **vitals(50),
            "modules": {HOSTILE: [1.0, 0.5, 2.0], "__proto__": [2, 1, 1], "constructor": [3, 2, 1]},
        },
        {**forecast(50, 3, 9), "what": HOSTILE, "modules": [HOSTILE]},
        step_line(51, **{HOSTILE: 3.5, "__proto__": 1.0, "action": HOSTILE, "what": HOSTILE}),
    ]
    write_lines(run_dir, lines)
    write_incident(run_dir, "0001", data)
    return run_dir


if __name__ == "__main__":
    full_run(Path(sys.argv[1]) / "full")
    hostile_run(Path(sys.argv[1]) / "hostile")
