"""Checkpoints as text: what each one is, its rates, its findings; histories and comparisons as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings import Finding
from stayfinite.findings.subjects.checkpoint import Checkpoint, Scheduler
from stayfinite.report.terminal import table
from stayfinite.report.text import lines, screen, tally

_BARS = "▁▂▃▄▅▆▇█"


def size(nbytes: float) -> str:
    """ "1.5 GB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return ""


def heading(checkpoint: Checkpoint) -> Text:
    """The path and what it is, in one line."""
    parts = (
        [checkpoint.format, size(checkpoint.nbytes)] if checkpoint.format != "unknown" else ["not readable"]
    )
    if checkpoint.step is not None:
        parts.append(f"step {checkpoint.step}")
    if checkpoint.tensors:
        parts.append(f"{len(checkpoint.tensors)} tensors")
    line = Text(checkpoint.path, style="bold")
    line.append(f"  ({', '.join(parts)})", style="not bold dim")
    return line


def rate_lines(checkpoint: Checkpoint) -> list[Text]:
    """The learning rate now, at the start and at its peak, for each optimizer; and the scheduler's place."""
    made: list[Text] = []
    for optimizer in checkpoint.optimizers:
        seen: dict[str, int] = {}
        for group in optimizer.groups:
            parts = [f"{group.lr:.4g} now"] if group.lr is not None else []
            if group.initial_lr is not None:
                parts.append(f"{group.initial_lr:.4g} initial")
            peak = group.max_lr if group.max_lr is not None else group.initial_lr
            if peak is not None:
                parts.append(f"{peak:.4g} peak")
            if parts:
                text = ", ".join(parts)
                seen[text] = seen.get(text, 0) + 1
        for text, count in list(seen.items())[:4]:
            groups = f" ({count} groups)" if count > 1 else ""
            made.append(Text(f"  learning rate  {text}{groups}"))
        if len(seen) > 4:
            made.append(Text(f"          and {len(seen) - 4} other rates"))
    for scheduler in checkpoint.schedulers:
        made.append(Text(f"          {_scheduler(scheduler)}"))
    return made


def _scheduler(scheduler: Scheduler) -> str:
    total = f" of {scheduler.total}" if scheduler.total is not None else ""
    place = f" at {scheduler.last_epoch}{total}" if scheduler.last_epoch is not None else ""
    inner = f": {', then '.join(_scheduler(child) for child in scheduler.inner)}" if scheduler.inner else ""
    return f"{scheduler.kind}{place}{inner}"


def checkpoint_lines(
    results: Sequence[tuple[Checkpoint, Sequence[Finding]]], *, everything: bool, seconds: float, nbytes: int
) -> list[RenderableType]:
    """All checkpoints, worst first, at most a screen unless `everything`."""
    made: list[RenderableType] = []
    ordered = sorted(
        results, key=lambda item: (min((f.severity.rank for f in item[1]), default=9), item[0].step or 0)
    )
    left = screen() - 4
    hidden = 0
    for checkpoint, findings in ordered:
        block: list[RenderableType] = [heading(checkpoint), *rate_lines(checkpoint)]
        several = len(results) > 1
        room = max(4, left - len(block)) if several else None
        block += lines(findings, everything=everything, room=room)
        if not findings:
            block.append(Text("  healthy", style="green"))
        if not everything and made and len(block) > left:
            hidden += 1
            continue
        made += block
        left -= len(block)
    if hidden:
        made.append(Text(f"and {hidden} more checkpoints; --all shows everything", style="dim"))
    every = [finding for _, findings in results for finding in findings]
    speed = f", {nbytes / seconds / 1e9:.2f} GB/s" if seconds > 0.05 and nbytes > 1e6 else ""
    count = f"{len(results)} checkpoint{'s' if len(results) != 1 else ''}"
    made.append(Text(f"{count}, {size(nbytes)}{speed}: {tally(every)}", style="bold"))
    return made


def sparkline(values: Sequence[float | None]) -> str:
    """Small bars on a logarithmic scale; x where a value is not finite, a gap where there is none."""
    logs = [math.log10(v) for v in values if v is not None and math.isfinite(v) and v > 0]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    drawn = ""
    for value in values:
        if value is None:
            drawn += " "
        elif not math.isfinite(value):
            drawn += "x"
        elif value <= 0 or high - low < 1e-3:
            drawn += _BARS[0] if value <= 0 else _BARS[3]
        else:
            drawn += _BARS[round((math.log10(value) - low) / (high - low) * (len(_BARS) - 1))]
    return drawn


def trail_table(names: Sequence[str], trails: Sequence[tuple[str, Sequence[float | None]]]) -> RenderableType:
    """Norms of some tensors over some checkpoints, with a sparkline."""
    rows = [
        (tensor, *("-" if v is None else f"{v:.3g}" for v in values), sparkline(values))
        for tensor, values in trails
    ]
    return table(("norm of", *names, ""), rows)
