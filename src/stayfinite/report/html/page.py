"""Renders the page: one template, its style and its script in one file. Everything from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

import stayfinite
from stayfinite.findings import Json, dumps
from stayfinite.report.html import charts
from stayfinite.report.html.comparison import Comparison
from stayfinite.report.html.incident_view import IncidentView
from stayfinite.report.html.run_view import RunView
from stayfinite.report.html.words import bare_op, count, figure, prose, sentence
from stayfinite.report.record.folder import RunContents
from stayfinite.report.record.run import RunRecord

SCRIPTS = ("series.js", "charts.js", "heat.js", "page.js")
LIVE_SCRIPTS = (*SCRIPTS, "live.js")
FRAGMENTS = ("summary", "tiles", "outlook", "audit", "vitals", "numbers", "timeline", "environment")
"""Parts of the page that a live page replaces as the run goes on; incidents come one by one."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("stayfinite.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"prose": prose, "sentence": sentence, "figure": figure, "bare_op": bare_op}
    made.globals |= {"version": stayfinite.__version__, "count": count}
    return made


@cache
def asset(name: str) -> str:
    return (files("stayfinite.report.html") / "assets" / name).read_text(encoding="utf-8")


@cache
def style() -> str:
    """The dark colours stand in two places: chosen by the machine, and by the button."""
    return asset("page.css").replace("/* dark.css */\n", asset("dark.css"))


@cache
def script(names: Sequence[str]) -> str:
    return "\n".join(asset(name) for name in names)


@cache
def script_hash(names: Sequence[str]) -> str:
    """The page's policy allows the script with this hash and no other."""
    digest = hashlib.sha256(script(names).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def in_script(data: Any) -> Markup:
    """JSON for a script element: no character in it can end the element."""
    return htmlsafe_json_dumps(data, dumps=lambda value, **_: dumps(value))


def render_run(contents: RunContents) -> str:
    """A run with its incidents, or one incident alone."""
    view = RunView(contents)
    return render_page("run.html", view=view, data=run_data(view), title=_title(view))


def render_comparison(runs: Sequence[RunContents]) -> str:
    """Several runs side by side."""
    compared = Comparison(runs)
    data: dict[str, Json] = {"charts": list(charts.compared_charts(compared.records))}
    return render_page("comparison.html", view=compared, data=data, title=compared.headline)


def render_live(view: RunView, address: str) -> str:
    """The same page, to be filled by the events at `address`."""
    return render_page(
        "run.html", view=view, data={"live": address}, title=_title(view), names=LIVE_SCRIPTS, connect=True
    )


def render_list(runs: Sequence[dict[str, str]], folder: str) -> str:
    """Several runs to choose from."""
    return render_page("list.html", runs=runs, folder=folder, data={}, title=f"Runs in {folder}")


def fragment(name: str, view: RunView) -> str:
    return environment().get_template(f"_{name}.html").render(view=view)


def incident_fragment(incident: IncidentView, view: RunView) -> str:
    return environment().get_template("_incident.html").render(incident=incident, view=view)


def run_data(view: RunView) -> dict[str, Json]:
    """What the script draws."""
    record = view.record
    return {
        "charts": [*charts.record_charts(record), *(chart for i in view.incidents for chart in i.charts)],
        "actions": action_data(record),
        "incidents": [[step, number] for step, number in record.incident_steps],
        "heat": record.heat.to_json() if record.heat.columns else None,
        "limit": charts.forecast_limit(record, "largest output"),
    }


def action_data(record: RunRecord) -> dict[str, Json]:
    return {action: envelope.to_json() for action, envelope in record.action_steps.items()}


def _title(view: RunView) -> str:
    return f"{view.headline} - {view.name}"


def render_page(
    template: str,
    *,
    data: dict[str, Json],
    title: str,
    names: Sequence[str] = SCRIPTS,
    connect: bool = False,
    **more: Any,
) -> str:
    names = tuple(names)
    policy = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src '{script_hash(names)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if connect else []),
    ]
    return environment().get_template(template).render(
        title=title,
        policy="; ".join(policy),
        style=Markup(style()),
        script=Markup(script(names)),
        data=in_script(data),
        live=connect,
        **more,
    )  # fmt: skip
