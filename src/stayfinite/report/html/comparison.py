"""Several runs side by side: what each reached, where each failed, and in what their environments differ."""

from __future__ import annotations

from collections.abc import Sequence

from stayfinite.report.html.run_view import RunView
from stayfinite.report.html.words import figure
from stayfinite.report.record.folder import RunContents
from stayfinite.report.record.run import RunRecord

_SCALER = "Skipped by the loss scaler"


class Comparison:
    """What the template asks for; every run has a name of its own."""

    def __init__(self, runs: Sequence[RunContents]) -> None:
        names = _distinct(runs)
        self.views = [RunView(run) for run in runs]
        for view, name in zip(self.views, names, strict=True):
            view.name = name
        self.records: dict[str, RunRecord] = {view.name: view.record for view in self.views}

    @property
    def headline(self) -> str:
        names = [view.name for view in self.views]
        return f"{', '.join(names[:-1])} and {names[-1]} compared"

    @property
    def verdict(self) -> str:
        """Where they part: the first step at which one is refused and another is not."""
        firsts = [(step, view.name) for view in self.views if (step := _first_refused(view)) is not None]
        if not firsts:
            return "No step of these runs was refused."
        step, name = min(firsts)
        others = [view.name for view in self.views if view.name != name and _first_refused(view) is None]
        alone = f" No step of {', '.join(others)} was refused." if others else ""
        return f"The first refused step is step {step:,} of {name}.{alone}"

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Label and a value for each run."""
        views = self.views
        made = [
            ("Steps on record", [f"{view.record.count:,}" for view in views]),
            ("Updates applied", [f"{view.record.applied:,}" for view in views]),
            ("Steps refused", [f"{view.record.failed:,}" for view in views]),
            (_SCALER, [f"{view.record.actions['backoff']:,}" for view in views]),
            ("First refused step", [_shown(_first_refused(view)) for view in views]),
            ("Kinds of failure", [f"{len(view.incidents) + view.incidents_left_out:,}" for view in views]),
            ("Last loss", [figure(view.record.last.get("loss")) for view in views]),
            ("Lowest loss", [figure(view.record.best_loss[0]) if view.record.best_loss else "–" for view in views]),
        ]  # fmt: skip
        greatest = [{name: high for name, _, high, _, _ in view.numbers} for view in views]
        for name, label in (
            ("Gradient norm", "Greatest finite gradient norm"),
            ("Largest output of a module", "Largest finite output of a module"),
        ):
            if any(name in found for found in greatest):
                made.append((label, [found.get(name, "–") for found in greatest]))
        return [(label, values) for label, values in made if label != _SCALER or set(values) != {"0"}]

    @property
    def differences(self) -> list[tuple[str, list[str]]]:
        """The facts of the environment that are not the same everywhere."""
        facts = [dict(view.environment) for view in self.views]
        keys = dict.fromkeys(key for found in facts for key in found)
        rows = [(key, [found.get(key, "–") for found in facts]) for key in keys]
        return [row for row in rows if len(set(row[1])) > 1]


def _distinct(runs: Sequence[RunContents]) -> list[str]:
    """The folders' names; with the parent's where two are alike; numbered where even those are."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.path.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, start=1)]
    return names


def _first_refused(view: RunView) -> int | None:
    """Not one that a loss scaler skips by its own rules."""
    steps = [line for line in view.record.first_events if "event" not in line]
    refused = [line["step"] for line in steps if line.get("action") != "backoff"]
    incidents = [incident.step for incident in view.incidents if incident.step is not None]
    return min([*refused, *incidents], default=None)


def _shown(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"
