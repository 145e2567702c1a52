"""A log as a picture, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stayfinite.findings.subjects.log import Log
from stayfinite.report.log_panels import by_steps, marks, panels

_COLOURS = {"nonfinite": "tab:red", "spike": "tab:orange", "scale-fell": "tab:purple", "resume": "tab:blue",
            "skip": "goldenrod", "rate-jump": "tab:green"}  # fmt: skip


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(logs: Sequence[Log], path: Path, also: Sequence[str] = ()) -> None:
    """All panels of all logs under each other."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    backend: Any = importlib.import_module("matplotlib.backends.backend_agg")
    shown = [(log, panel) for log in logs for panel in panels(log, also)]
    figure = figure_module.Figure(figsize=(10, 2.2 * max(len(shown), 1) + 0.6), layout="constrained")
    backend.FigureCanvasAgg(figure)
    axes = figure.subplots(max(len(shown), 1), 1, squeeze=False)[:, 0]
    for axis, (log, panel) in zip(axes, shown, strict=False):
        axis.fill_between(panel.x, panel.low, panel.high, alpha=0.25, linewidth=0)
        axis.plot(panel.x, panel.mean, linewidth=1.2)
        if panel.logarithmic:
            axis.set_yscale("log")
        for mark in marks(log):
            axis.axvline(mark.x, color=_COLOURS[mark.what], linewidth=0.9, linestyle="--")
        if panel.bad:
            axis.plot(panel.bad, [1.0] * len(panel.bad), "x", color="tab:red", markersize=5, clip_on=False,
                      transform=axis.get_xaxis_transform())  # fmt: skip
        name = f"{panel.name}  ({log.path})" if len(logs) > 1 else panel.name
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_xlabel("step" if by_steps(log) else "record", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=120)
