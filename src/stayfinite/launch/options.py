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
    locate: str = "auto"  # "auto": find where a failure began, by a second run if needed; "off"
    allow_rerun: bool = False  # a second run also where there is no sandbox for it
    locate_limit: float = 600.0  # seconds that a second run may take
    output: Path | None = None
    form: str = "text"
    run_dir: Path | None = None
    max_incidents: int = 10
    prove: bool = True  # try remedies on a failure that was located
    prove_limit: float = 60.0  # seconds that trying may take
    policy: str | None = None
    fail_under: float = 0.5  # share of updates that must be applied for an exit code of 0
    clip: float | None = None
    traced: bool = False  # in a second run: follow every op, refuse nothing
    trace_from_step: int | None = None  # in a second run: trace from here on
    trace_until_step: int | None = None  # in a second run: and no further than this
    stop_after_step: int | None = None  # in a second run: nothing after this step is of interest
    ended: Path | None = None  # in a second run: say here how far it came
