"""What `stayfinite run` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    trace: str = (
        "failure"  # "failure": only as long as needed, with a second run on failure; "always"; "never"
    )
    output: Path | None = None
    form: str = "text"
    run_dir: Path | None = None
    max_incidents: int = 10
    policy: str | None = None
    clip: float | None = None
    replay_after: float = 60.0  # seconds into the run after which a second run would take too long
    trace_from_step: int | None = None  # in a second run: trace from here on
    scratch: Path | None = None  # in a second run: what the script writes goes here
    stop_after_step: int | None = None  # in a second run: nothing after this step is of interest
