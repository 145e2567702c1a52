"""ForecastView: a forecast in words, with the steps it is about."""

from __future__ import annotations

from typing import Any

from stayfinite.report.html.words import figure, sentence, step_number
from stayfinite.report.record.loose import items, text, to_number, whole


class ForecastView:
    """A warning before it happens."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.step = whole(line, "step") or 0
        self.what = text(line, "what", "a value grows towards its limit")
        self.limit, self.value = figure(line.get("limit")), figure(line.get("value"))
        self.factor = to_number(line.get("factor"))
        ends = [to_number(value) for value in items(line, "steps_left")[:2]]
        self.low, self.high = [*ends, None, None][:2]
        self.modules = [module for module in items(line, "modules")[:12] if isinstance(module, str)]

    @property
    def now(self) -> str:
        """ "the largest output of head is 2.7e9, 261 times more at each step" """
        known = self.value != "–"
        what = f"the {self.what.rstrip('.')} is {self.value}" if known else self.what.rstrip(".")
        if self.factor is None or self.high is None or self.factor <= 0 or not known:
            return what
        return what + (
            " and falls at nearly every step"
            if self.factor < 1
            else f", {figure(self.factor)} times as large from step to step"
        )

    @property
    def when(self) -> str:
        if self.low is None:
            return f"the limit is {self.limit}"
        if self.high is None:
            return f"the limit {self.limit} is near, and may be passed from step {step_number(self.step + self.low)} on"
        if self.high == self.low:
            return f"at this pace the limit {self.limit} is reached near step {step_number(self.step + self.low)}"
        return (
            f"at this pace the limit {self.limit} is reached between step {step_number(self.step + self.low)} "
            f"and {step_number(self.step + self.high)}"
        )

    @property
    def sentence(self) -> str:
        return sentence(f"{self.now}; {self.when}")
