"""The live page in a real browser: it fills itself, and says so when the run or the server is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.conftest import Browser
from report.written_runs import (
    HOSTILE,
    forecast,
    hostile_run,
    incident,
    step_line,
    vitals,
    write_incident,
    write_lines,
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, subprocess.Popen[str]]]:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "stayfinite", "live", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield run, process.stdout.readline().split()[-1], process
        process.send_signal(signal.SIGINT)
        process.wait(20)


def test_the_page_grows_with_the_run(
    browser: Browser, served: tuple[Path, str, subprocess.Popen[str]]
) -> None:
    run, address, process = served
    browser.open(address)
    assert "token" not in browser.driver.current_url
    browser.wait("document.getElementById('live-state').textContent === 'waiting for the run to begin'")
    write_lines(
        run,
        [{"event": "start", "step": 0, "environment": {"torch": "2.13"}}, *(step_line(i) for i in range(50))],
    )
    browser.wait("document.body.dataset.step === '49'")
    browser.wait("document.getElementById('live-state').textContent === 'live'")
    browser.wait("document.querySelectorAll('figure.chart[data-drawn]').length > 6")
    write_lines(
        run,
        [vitals(50), forecast(50, 10, 20), step_line(50, loss="nan", action="skip", what="the loss is nan")],
    )
    write_incident(run, "0001", incident("a.py", step=50))
    browser.wait("document.querySelector('[data-chart=\"run:loss\"] [data-mark=nan]') !== null")
    browser.wait("document.querySelector('#incident-0001 h2') !== null")
    browser.wait(
        "document.querySelector('#heat canvas[data-drawn]') !== null && !document.getElementById('modules').hidden"
    )
    browser.wait("document.getElementById('outlook')?.innerText.includes('between step 60 and 70')")
    browser.wait("document.querySelectorAll('[data-charts=i0001] figure[data-drawn]').length > 3")
    browser.wait("document.getElementById('timeline')?.innerText.includes('The loss is nan')")
    browser.ask("document.querySelector('[data-keep=numbers]').open = true")
    write_lines(run, [step_line(i) for i in range(51, 200)])
    browser.wait("document.body.dataset.step === '199'")
    time.sleep(3)  # long tables come a little later
    assert browser.ask("return document.querySelector('[data-keep=numbers]').open")
    assert browser.complaints() == []
    browser.picture("live")
    process.send_signal(signal.SIGKILL)
    browser.wait("document.getElementById('live-state').textContent.startsWith('no connection')")
    assert browser.ask("return document.querySelectorAll('figure.chart').length") > 10


def test_a_training_that_is_killed_is_not_taken_for_one_that_is_busy(
    browser: Browser, served: tuple[Path, str, subprocess.Popen[str]]
) -> None:
    run, address, _ = served
    script = Path(__file__).parents[1] / "report" / "ended_training.py"
    state = "document.getElementById('live-state').textContent"
    browser.open(address)
    command = [sys.executable, str(script), str(run), "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None and training.stdout.readline() == "training\n"
        try:
            browser.wait("Number(document.body.dataset.step) > 30")
            assert browser.ask(f"return {state}") == "live"
        finally:
            training.kill()
    browser.wait(f"{state}.startsWith('the run ended without closing')")
    browser.picture("live-killed")
    with subprocess.Popen([*command[:-1], "0"], stdout=subprocess.PIPE, text=True) as training:
        assert training.wait() == 0
    browser.wait(f"{state} === 'the run has ended'")
    browser.wait("document.getElementById('timeline')?.innerText.includes('has ended and closed its record')")
    assert browser.complaints() == []


def test_hostile_text_stays_text_here_too(
    browser: Browser, served: tuple[Path, str, subprocess.Popen[str]]
) -> None:
    run, address, _ = served
    browser.open(address)
    hostile_run(run)
    browser.wait("document.body.dataset.step === '51'")
    browser.wait("document.querySelector('#incident-0001') !== null")
    time.sleep(1)
    assert browser.ask("return document.images.length") == 0
    assert "owned" not in browser.driver.title
    assert HOSTILE[:20] in browser.ask("return document.body.innerText")
    assert browser.complaints() == []
