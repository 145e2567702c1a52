"""The progress line of a guarded run: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from stayfinite.findings import Incident, Json, as_float

if TYPE_CHECKING:
    from rich.live import Live

_LOG = logging.getLogger("stayfinite")
# said on the terminal already; who configures logging gets it there
_LOG.addHandler(logging.NullHandler())
_REDRAW_SECONDS = 0.1
_PLAIN_LINE_SECONDS = 15.0


Says = Literal["everything", "decisions", "nothing"]
"""How much a run says while it goes on. Decisions: what was refused, what was done about it, and what is foretold."""
_DECISIONS = ("refusal", "lower-lr", "rollback", "repair", "drift", "stop", "forecast")


class Progress:
    """Shows loss, norm, learning rate and counts, and says every event. To stderr; stdout is the script's own."""

    def __init__(self, says: Says) -> None:
        self._says = says
        self._quiet = quiet = says != "everything"
        self._console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self._terminal = not quiet and sys.stderr.isatty()
        self._live: Live | None = None
        self._shown = time.monotonic()
        self._text = ""

    def step(self, line: dict[str, Json], counts: dict[str, int]) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if now - self._shown < (_REDRAW_SECONDS if self._terminal else _PLAIN_LINE_SECONDS):
            return
        self._shown = now
        self._text = describe(line, counts)
        if not self._terminal:
            self._console.print(Text(self._text))
            return
        if self._live is None:
            from rich.live import Live  # needed by a terminal only

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(self._text, overflow="ellipsis", no_wrap=True), refresh=True)

    def event(self, text: str, kind: str) -> None:
        """Something a person must know; said even between two progress lines."""
        _LOG.warning(text)
        if self._says == "everything" or (self._says == "decisions" and kind in _DECISIONS):
            if _is_logged_to_the_terminal():
                return
            self._console.print(Text(f"stayfinite: {text}"))

    def show(self, incident: Incident) -> None:
        """The one-screen report of a failure."""
        from stayfinite.report.incident import lines  # needed by a failure only

        if not self._quiet:
            for line in lines(incident):
                self._console.print(line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _is_logged_to_the_terminal() -> bool:
    """The script has set up logging so that what was logged is read there already."""
    seen = [sys.stderr]
    if sys.stderr.isatty() and sys.stdout.isatty():  # else what goes to stdout is read elsewhere
        seen.append(sys.stdout)
    logger: logging.Logger | None = _LOG if _LOG.isEnabledFor(logging.WARNING) else None
    while logger is not None:
        for handler in logger.handlers:
            console = getattr(handler, "console", None)
            stream = getattr(handler, "stream", None) or getattr(console, "file", None)
            if stream in seen and handler.level <= logging.WARNING:
                return True
        logger = logger.parent if logger.propagate else None
    return False


def describe(line: dict[str, Json], counts: dict[str, int]) -> str:
    """step 120 | loss 2.31 | norm 0.84 | lr 3e-4 | applied 119 | skipped 1"""
    parts = [f"step {line.get('step')}"]
    for key, label in (("loss", "loss"), ("grad_norm", "norm")):
        value = as_float(line.get(key))
        if value is not None:
            parts.append(f"{label} {value:.4g}")
    rates: Any = line.get("lr") or []
    if rates:
        parts.append("lr " + "/".join(f"{rate:.3g}" for rate in dict.fromkeys(rates)))
    if line.get("scale") is not None:
        parts.append(f"scale {as_float(line['scale']):g}")
    parts.append(f"applied {counts['applied']}")
    parts.append(f"skipped {counts['skipped']}")
    if counts["rolled_back"]:
        parts.append(f"rolled back {counts['rolled_back']}")
    return " | ".join(parts)
