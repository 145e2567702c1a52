"""One chromium for all tests of the pages. Not part of `make test`: `make test-browser` runs them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
SIZES = {"desktop": (1200, 900), "phone": (390, 844)}


class Browser:
    """A page to open, look at and ask."""

    def __init__(self, profile: Path, pictures: Path) -> None:
        options = Options()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        self.pictures = pictures

    def look(self, size: str = "desktop", scheme: str = "light") -> None:
        """From now on, pages are seen so."""
        width, height = SIZES[size]
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=size == "phone",
        )  # fmt: skip
        self.command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def open(self, address: Path | str) -> None:
        self.logs("browser"), self.logs("performance")
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)
        self.wait("document.readyState === 'complete'")
        self.ask("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 20) -> None:
        WebDriverWait(self.driver, seconds, 0.1).until(lambda _: self.ask(f"return {condition}"), condition)

    def logs(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)
        return found

    def complaints(self) -> list[str]:
        """Errors and warnings on the console."""
        return [entry["message"] for entry in self.logs("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def picture(self, name: str) -> None:
        """The whole page as a PNG, for a person to look at."""
        height = int(self.ask("return document.documentElement.scrollHeight"))
        width = int(self.ask("return innerWidth"))
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=min(height, 12_000), deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.ask("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.driver.save_screenshot(str(self.pictures / f"{name}.png"))


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pictures = Path(os.environ.get("STAYFINITE_SCREENSHOTS") or tmp_path_factory.mktemp("pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    browser = Browser(tmp_path_factory.mktemp("profile"), pictures)
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(shared_browser: Browser) -> Browser:
    shared_browser.look()
    shared_browser.driver.get("about:blank")
    return shared_browser
