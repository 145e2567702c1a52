"""The written pages in a real browser: drawn, quiet, escaped, reachable by keyboard, readable in light and dark."""
# ruff: noqa: E501

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browser.conftest import Browser
from report.written_runs import (
    HOSTILE,
    full_run,
    hostile_run,
    incident,
    step_line,
    write_incident,
    write_lines,
)
from stayfinite.report.html.page import render_comparison, render_run
from stayfinite.report.record.folder import open_folder

DRAWN = """
return [...document.querySelectorAll("figure.chart")].map((figure) => {
  const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
  const lines = [...svg.querySelectorAll("path.wire")].filter((path) => path.getTotalLength() > 0).length;
  const dots = svg.querySelectorAll("path[stroke-linecap]").length;
  return {id: figure.dataset.chart, lines, dots, marks: svg.querySelectorAll("[data-mark]").length,
          width: box.width, height: box.height, label: svg.getAttribute("aria-label"),
          nan: /NaN[^ ,]|Infinity|undefined/.test(svg.innerHTML.replace(/aria-label="[^"]*"/g, ""))};
})
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    full, hostile = full_run(root / "full"), hostile_run(root / "hostile")
    write_lines(root / "healthy", [step_line(i) for i in range(300)])
    opened = {
        "full": full,
        "hostile": hostile,
        "healthy": root / "healthy",
        "incident": full / "incidents" / "0001",
    }
    made = {}
    for name, folder in opened.items():
        made[name] = root / f"{name}.html"
        made[name].write_text(render_run(open_folder(folder)), encoding="utf-8")
    made["comparison"] = root / "comparison.html"
    made["comparison"].write_text(
        render_comparison([open_folder(full), open_folder(root / "healthy")]), encoding="utf-8"
    )
    return made


NAMES = ("full", "hostile", "healthy", "incident", "comparison")


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_drawn_without_a_complaint_and_without_the_network(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name])
    drawn = browser.ask(DRAWN)
    assert sorted(chart["id"] for chart in drawn) == sorted(
        chart["id"] for chart in data_of(pages[name])["charts"]
    )
    assert len(drawn) > 4
    for chart in drawn:
        assert chart["lines"] or chart["dots"] or chart["marks"], chart
        assert chart["width"] > 200 and chart["height"] > 100, chart
        assert chart["label"] and not chart["nan"], chart
    assert browser.complaints() == []
    assert browser.requests() == [pages[name].as_uri()]


def test_non_finite_values_are_marks_where_they_happened(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    places = browser.ask(
        """
        const chart = Plots.charts["run:loss"], made = {};
        for (const path of chart.svg.querySelectorAll("[data-mark]")) {
          made[path.dataset.mark] = [...path.getAttribute("d").matchAll(/M([\\d.]+) /g)].map((m) => chart.step(Number(m[1])));
        }
        return made;
        """
    )
    assert len(places["inf"]) >= 1 and all(abs(step - 401) < 12 for step in places["inf"])
    assert len(places["nan"]) == 1 and abs(places["nan"][0] - 800) < 12


def test_the_heat_map_shows_growth_in_time_and_depth(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    light = browser.ask(
        """
        const canvas = document.querySelector("#heat canvas"), context = canvas.getContext("2d");
        const at = (x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3).reduce((a, b) => a + b);
        return [at(0, 0), at(canvas.width - 1, 0), at(0, canvas.height - 1), at(canvas.width - 1, canvas.height - 1),
                canvas.width, canvas.height];
        """
    )
    assert light[0] > light[1] > light[3] and light[0] > light[2] > light[3]
    assert light[4:] == [60, 12]
    browser.driver.find_element(By.CSS_SELECTOR, "#heat canvas").send_keys(Keys.ARROW_DOWN)
    assert "blocks.1" in browser.ask("return document.querySelector('.heat-tools output').textContent")


def test_nothing_crosses_the_name_of_the_limit(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    above = browser.ask(
        """
        const svg = document.querySelector('[data-chart="run:largest output"] svg');
        const name = svg.querySelector("text.limit-name").getBoundingClientRect();
        const over = (node) => { const box = node.getBoundingClientRect();
          return box.left < name.right && box.right > name.left && box.top < name.bottom - 2 && box.bottom > name.top; };
        return [svg.querySelectorAll("path.a-forecast").length,
                [...svg.querySelectorAll("path")].filter(over).map((node) => node.getAttribute("class"))];
        """
    )
    assert above[0] == 1 and above[1] == []


def test_the_names_on_the_left_are_inside_their_plots(browser: Browser, pages: dict[str, Path]) -> None:
    """A printed page has no margin of its own: what stands out is cut off."""
    browser.open(pages["full"])
    outside = browser.ask(
        """
        return [...document.querySelectorAll("figure.chart svg text")].filter((text) =>
          text.getBoundingClientRect().left < text.ownerSVGElement.getBoundingClientRect().left - 0.5)
          .map((text) => text.textContent);
        """
    )
    assert outside == []


def test_growth_by_depth_fits_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look("phone")
    browser.open(pages["incident"])
    widths = browser.ask(
        "return [...document.querySelectorAll('table.growth')].map((t) => [t.parentElement.scrollWidth, t.parentElement.clientWidth])"
    )
    assert widths and all(needed <= there for needed, there in widths)


def test_steps_between_the_ends_of_the_heat_map_stand_under_their_columns(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["full"])
    between = browser.ask(
        """
        const map = Heat.map, box = map.canvas.getBoundingClientRect();
        return [...document.querySelectorAll(".heat .steps .between")].map((label) => {
          const own = label.getBoundingClientRect(), share = ((own.left + own.right) / 2 - box.left) / box.width;
          return [Number(label.textContent.replace(",", "")), map.numbers[Math.floor(share * map.numbers.length)] * map.width];
        });
        """
    )
    assert len(between) == 3 and all(named == under for named, under in between)


def test_forecasts_and_rollbacks_are_marked_on_the_heat_map(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    marked = browser.ask(
        """
        const made = {}, map = Heat.map;
        for (const path of document.querySelectorAll(".heat-marks path:not(.under)")) {
          made[path.dataset.action] = [...path.getAttribute("d").matchAll(/M([\\d.]+) /g)]
            .map((m) => map.numbers[Math.floor(Number(m[1]))] * map.width);
        }
        const box = document.querySelector(".heat-marks").getBoundingClientRect();
        const canvas = document.querySelector("#heat canvas").getBoundingClientRect();
        return [made, Math.abs(box.width - canvas.width) < 1 && Math.abs(box.left - canvas.left) < 1];
        """
    )
    steps = {action: [step for step, _ in found] for action, found in acted(pages["full"]).items()}
    assert marked[1] and {"forecast", "rollback"} <= set(marked[0])
    for action, columns in marked[0].items():
        assert all(any(0 <= column - step < 21 for step in steps[action]) for column in columns), (
            action,
            columns,
        )


def acted(page: Path) -> dict[str, list[tuple[int, float]]]:
    actions = data_of(page)["actions"]
    return {
        action: [(at * found["width"], low) for at, low in zip(found["at"], found["low"], strict=True)]
        for action, found in actions.items()
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_text_stays_text(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    browser.look(scheme=scheme)
    browser.open(pages["hostile"])
    assert "owned" not in browser.driver.title.replace(HOSTILE, "")
    assert browser.ask("return document.images.length") == 0
    assert browser.ask("return document.scripts.length") == 2
    assert browser.ask("return Object.prototype.hasOwnProperty.call(Object.prototype, 'at')") is False
    assert HOSTILE.replace("`", "")[:40] in browser.ask("return document.body.innerText")
    browser.driver.find_element(By.CSS_SELECTOR, "figure.chart svg").send_keys(Keys.END)
    browser.ask("for (const details of document.querySelectorAll('details')) details.open = true")
    assert browser.driver.title.startswith("Step 400")
    assert browser.complaints() == []


def test_the_page_allows_no_script_but_its_own(browser: Browser, pages: dict[str, Path]) -> None:
    """The second wall: even text that became markup would not run."""
    browser.open(pages["full"])
    browser.ask("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\">')")
    browser.ask(
        "const s = document.createElement('script'); s.textContent = 'window.owned = 2'; document.body.append(s)"
    )
    browser.wait("true")
    assert browser.ask("return window.owned") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())


def test_everything_is_reachable_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    wanted = set(
        browser.ask(
            """
            const nodes = document.querySelectorAll("a[href], button, summary, pre[tabindex], svg[tabindex], canvas, .scroll, input:checked");
            const seen = [...nodes].filter((node) => node.checkVisibility());
            seen.forEach((node, i) => { node.dataset.number = i; });
            return seen.map((node) => Number(node.dataset.number));
            """
        )
    )
    assert len(wanted) > 40
    reached, bare = set(), []
    for _ in range(len(wanted) + 10):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        number, outlined, name = browser.ask(
            """
            const node = document.activeElement, style = getComputedStyle(node);
            return [node.dataset.number === undefined ? -1 : Number(node.dataset.number),
                    style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0, node.outerHTML.slice(0, 90)];
            """
        )
        if not outlined:
            bare.append(name)
        reached.add(number)
    assert wanted <= reached, wanted - reached
    assert bare == [name for name in bare if name.startswith("<body")]


def test_a_chart_is_read_and_zoomed_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    chart = browser.driver.find_element(By.CSS_SELECTOR, '[data-chart="run:loss"] svg')
    read = "return document.querySelector('[data-chart=\"run:loss\"] .read').textContent"
    chart.send_keys(Keys.HOME)
    assert browser.ask(read).startswith("step 0: 2.4")
    chart.send_keys(Keys.ARROW_RIGHT)
    assert browser.ask(read).startswith("step 1: ")
    chart.send_keys(Keys.END, *[Keys.ARROW_LEFT] * 399)
    assert browser.ask(read) == "step 800: NaN"
    assert (
        browser.ask("return document.querySelector('[data-chart=\"run:grad_norm\"] .read').textContent")
        == "step 800: −Inf"
    )
    chart.send_keys("+")
    low, high = browser.ask("return Plots.groups.run.range()")
    assert 500 <= high - low <= 700 and low < 800 < high
    chart.send_keys(Keys.ESCAPE)
    assert browser.ask("return Plots.groups.run.range()") == [0, 1199]
    assert browser.complaints() == []


def test_a_chart_is_zoomed_by_dragging(browser: Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains

    browser.open(pages["full"])
    chart = browser.driver.find_element(By.CSS_SELECTOR, '[data-chart="run:loss"] svg')
    browser.ask("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    ActionChains(browser.driver).move_to_element_with_offset(chart, -100, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    low, high = browser.ask("return Plots.groups.run.range()")
    assert 200 < high - low < 700
    ActionChains(browser.driver).double_click(chart).perform()
    assert browser.ask("return Plots.groups.run.range()") == [0, 1199]


def test_buttons_work(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    before = browser.ask(paper)
    browser.driver.find_element(By.ID, "theme").click()
    assert browser.ask(paper) != before
    button = browser.driver.find_element(By.CSS_SELECTOR, "button.copy")
    button.send_keys(Keys.ENTER)
    browser.wait("document.querySelector('button.copy').textContent === 'Copied'")
    assert browser.complaints() == []


CONTRAST = """
const light = (color) => {
  const parts = color.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const ground = (node) => { while (node) { const c = getComputedStyle(node).backgroundColor; if (!/, 0\\)$/.test(c)) return c; node = node.parentElement; } return "rgb(255,255,255)"; };
const poor = [];
for (const node of document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, summary, a, code, button, .note, .code, .op, .place, .line, .add, .del, figcaption, label")) {
  if (!node.checkVisibility() || !node.textContent.trim()) continue;
  const a = light(getComputedStyle(node).color), b = light(ground(node));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push([node.className || node.tagName, ratio.toFixed(2), node.textContent.slice(0, 30)]);
}
return poor;
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")]
)
def test_it_can_be_read_in_light_and_dark_on_desktop_and_phone(
    browser: Browser, pages: dict[str, Path], name: str, size: str, scheme: str
) -> None:
    browser.look(size, scheme)
    browser.open(pages[name])
    assert browser.ask("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.ask(CONTRAST) == []
    if name == "full" or scheme == "light":
        browser.picture(f"{name}-{size}-{scheme}")


def test_it_prints_whole(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["incident"])
    printed = base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    (browser.pictures / "incident.pdf").write_bytes(printed)
    assert browser.ask("return [...document.querySelectorAll('details')].every((node) => node.open)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_light_and_the_heat_map_has_the_colours_of_its_scale(
    browser: Browser, pages: dict[str, Path], scheme: str
) -> None:
    """The canvas keeps what was drawn into it, so it has to be drawn again for paper, and once more after it."""
    browser.look(scheme=scheme)
    browser.open(pages["full"])
    corner = """
        const context = document.querySelector("#heat canvas").getContext("2d");
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    """
    seen = browser.ask(corner)
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.ask(corner) == [0xF4, 0xF1, 0xEA], "the lightest of the light scale"
    browser.ask("dispatchEvent(new Event('afterprint'))")
    assert browser.ask(corner) == seen
    browser.command("Emulation.setEmulatedMedia", media="print")
    adjust = "return getComputedStyle(document.querySelector('.scale i')).printColorAdjust"
    assert browser.ask(adjust) == "exact", "else the scale is white on paper"
    assert browser.ask(LETTERBOXED) == []
    browser.command("Emulation.setEmulatedMedia", media="")


LETTERBOXED = """
return [...document.querySelectorAll(".chart svg")].filter((svg) => {
  const drawn = svg.viewBox.baseVal, box = svg.getBoundingClientRect();
  return Math.abs(box.height / box.width - drawn.height / drawn.width) > 0.01;
}).map((svg) => svg.getAttribute("aria-label"));
"""
CUT_NAMES = """
return [...document.querySelectorAll(".heat .rows div")].filter((row) => row.getBoundingClientRect().height < 10.5)
  .map((row) => row.textContent);
"""


def test_many_modules_and_long_names_fit(browser: Browser, tmp_path: Path) -> None:
    modules = {
        f"encoder.layers.{i}.self_attention.output.dense.with.a.long.name": [1.0 + i, 0.5, 1.0]
        for i in range(400)
    }
    write_lines(
        tmp_path,
        [
            step_line(0, components={"x" * 300: 1.0, "b": 2.0}, observed={"o" * 300: [0.0, 1.0]}),
            {"event": "vitals", "step": 0, "modules": modules},
            step_line(1),
        ],
    )
    write_incident(tmp_path, "0001", incident("/" + "deep/" * 80 + "file.py", step=1))
    page = tmp_path / "page.html"
    page.write_text(render_run(open_folder(tmp_path)), encoding="utf-8")
    for size in ("desktop", "phone"):
        browser.look(size)
        browser.open(page)
        assert browser.ask("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.ask(CUT_NAMES) == []
        assert browser.complaints() == []
    browser.picture("long-names")
