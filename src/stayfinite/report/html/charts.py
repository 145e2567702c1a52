"""Which plots a page has: titles, order, and the series of a record that go into each. Data only; a script draws."""

from __future__ import annotations

from typing import Any

from stayfinite.findings import Json
from stayfinite.report.record.envelope import Envelope
from stayfinite.report.record.loose import number, objects, text, whole
from stayfinite.report.record.run import Key, RunRecord

TITLES = {
    "loss": "Loss",
    "components": "Components of the loss",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "scale": "Loss scale",
    "update_ratio": "Update / weight",
    "largest output": "Largest output of a module",
    "headroom": "Headroom (limit / largest output)",
    "group update / weight": "Update / weight, by group",
    "group weight norm": "Weight norm, by group",
    "group gradient / sqrt(v)": "Gradient / root of Adam's mean square, by group",
    "logits": "Largest attention logit",
    "exponents": "Largest argument of exp, by line",
    "observed": "Observed tensors, largest magnitude",
    "zeros": "Share of zeros and subnormals, half tensors",
    "skipped": "Share of the last 100 steps not applied",
    "input_absmax": "Largest input",
    "seconds": "Seconds a step",
    "memory_mb": "Memory, MB",
}
_FORETOLD = {"loss scale": "scale", "argument of exp": "exponents", "attention score": "logits"}
"""How a forecast begins, and the quantity it is about; all others are about outputs."""

_LAST = ("seconds", "memory_mb")
_GROUPED = ("lr", "group update / weight", "group weight norm", "group gradient / sqrt(v)")


def chart_id(quantity: str, run: str = "run") -> str:
    return f"{run}:{quantity}"


def title(quantity: str) -> str:
    if quantity.startswith("observed "):
        return f"Range of {quantity.removeprefix('observed ')}"
    if quantity.startswith("group "):
        return TITLES.get(quantity, f"{quantity.removeprefix('group ')}, by group")
    return TITLES.get(quantity, quantity)


def label(key: Key) -> str:
    """The name of a series in its plot."""
    quantity, part = key
    if quantity == "zeros":
        return part if part.startswith("subnormal") else f"zero {part}"
    return f"group {part}" if quantity in _GROUPED else part or title(quantity).lower()


def quantities(keys: list[Key]) -> list[str]:
    """In the order of the page: what one looks at first comes first, the machine last."""
    seen = list(dict.fromkeys(quantity for quantity, _ in keys))
    known = [quantity for quantity in TITLES if quantity in seen and quantity not in _LAST]
    others = [quantity for quantity in seen if quantity not in TITLES]
    return [*known, *others, *(quantity for quantity in _LAST if quantity in seen)]


def spec(quantity: str, *, group: str = "run") -> dict[str, Json]:
    """A plot without its data."""
    order = [*TITLES].index(quantity) if quantity in TITLES else len(TITLES) - len(_LAST) - 0.5
    return {
        "id": chart_id(quantity, group),
        "group": group,
        "title": title(quantity),
        "order": order,
        "series": {},
    }


def record_charts(record: RunRecord) -> list[dict[str, Json]]:
    """The plots of a whole run."""
    made = []
    for quantity in quantities(list(record.series)):
        chart = spec(quantity)
        chart["series"] = {
            label(key): envelope.to_json() for key, envelope in record.series.items() if key[0] == quantity
        }
        if (limit := forecast_limit(record, quantity)) is not None:
            chart["limit"] = limit
        made.append(chart)
    return made


def forecast_limit(record: RunRecord, quantity: str) -> float | None:
    """The limit that the newest forecast about it names."""
    if quantity not in ("largest output", *_FORETOLD.values()):
        return None
    about = [line for line in record.forecasts if _foretold(text(line, "what")) == quantity]
    return number(about[-1], "limit") if about else None


def _foretold(what: str) -> str:
    return next(
        (quantity for begins, quantity in _FORETOLD.items() if what.startswith(begins)), "largest output"
    )


def compared_charts(records: dict[str, RunRecord]) -> list[dict[str, Json]]:
    """The plots of several runs, one above the other. A run has one colour; parts of a quantity differ in dashes."""
    keys = list(dict.fromkeys(key for record in records.values() for key in record.series))
    made = []
    for quantity in quantities(keys):
        series: dict[str, Json] = {}
        styles: dict[str, Json] = {}
        for color, (name, record) in enumerate(records.items()):
            parts = [key for key in record.series if key[0] == quantity]
            for dash, key in enumerate(parts):
                named = name if len(parts) == 1 else f"{name}: {label(key)}"
                series[named], styles[named] = record.series[key].to_json(), [color, dash]
        made.append({**spec(quantity), "series": series, "styles": styles})
    return made


def history_charts(history: list[Any], step: int | None, group: str) -> list[dict[str, Json]]:
    """The last steps before a failure, as the incident holds them."""
    record = RunRecord()
    record.feed([line for line in history if isinstance(line, dict) and "event" not in line])
    made = []
    for chart in record_charts(record):
        quantity = str(chart["id"]).removeprefix("run:")
        if quantity in (*_LAST, "applied"):
            continue
        made.append({**chart, "id": chart_id(quantity, group), "group": group, "fails": step})
    return made


def growth_chart(growth: dict[str, Any], group: str) -> dict[str, Json] | None:
    """The largest value over time, as the incident's growth holds it."""
    points = [(whole(point, "step"), point.get("max")) for point in objects(growth, "by_time")]
    known = [(step, value) for step, value in points if step is not None]
    envelope = Envelope()
    envelope.extend([step for step, _ in known], [value for _, value in known])
    if not envelope.buckets:
        return None
    return {
        "id": chart_id("growth", group),
        "group": group,
        "title": "Largest value over time",
        "order": len(TITLES),
        "series": {"largest value": envelope.to_json()},
    }
