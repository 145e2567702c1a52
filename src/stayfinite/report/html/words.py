"""How the page writes numbers, shapes and prose. Prose may hold `code`; everything else stays text."""

from __future__ import annotations

import math
import re
from pathlib import PurePath
from typing import Any

from markupsafe import Markup, escape

from stayfinite.report.record.loose import to_number

_CODE = re.compile(r"`([^`\n]+)`")


def figure(value: Any) -> str:
    """A number in four digits; NaN and Inf by name; a dash for none."""
    number = to_number(value)
    if number is None:
        return "–"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Inf" if number > 0 else "−Inf"
    if number == int(number) and abs(number) < 1e6:
        return f"{int(number)}".replace("-", "−")
    return f"{number:.4g}".replace("-", "−")


def count(number: int, thing: str) -> str:
    """ "1 step", "240 steps"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def step_number(step: float) -> str:
    """ "1,234,567": steps are counted, and never rounded."""
    return f"{round(step):,}".replace("-", "−") if math.isfinite(step) else figure(step)


def shape(value: Any) -> str:
    """ "4 × 64"; "scalar"."""
    sizes = [str(size) for size in value if isinstance(size, int)] if isinstance(value, list) else []
    return " × ".join(sizes) or "scalar"


def prose(text: str) -> Markup:
    """Text in which `...` is code."""
    parts = _CODE.split(text)
    made = (Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts))
    return Markup("").join(made)


def sentence(text: str) -> str:
    """With a capital at the front and a full stop at the end."""
    text = text.strip()
    if not text:
        return ""
    if len(text) > 1 and text[0].islower() and text.split(maxsplit=1)[0].rstrip(",;:").isalpha():
        text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?:" else text + "."


def base_name(file: str) -> str:
    return PurePath(file).name or file


def bare_op(op: str) -> str:
    """ "aten.div.Tensor" -> "div"."""
    parts = op.removeprefix("aten.").split(".")
    return parts[0] or op
