"""The capsule of a script's failure: how it was started, its random numbers, and the source on the path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stayfinite.findings import Incident
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.prove import capsule


def write_script_capsules(
    run_dir: Path | None, incidents: list[Incident], options: Options, start: Beginning
) -> None:
    """One in the folder of every incident."""
    if run_dir is None:
        return
    for number, incident in enumerate(incidents, start=1):
        files = [incident.birth.file] if incident.birth is not None and incident.birth.file else []
        files += [step.file for step in incident.path if step.file]
        if not options.module:
            files.append(os.path.realpath(options.target))
        folder = run_dir / "incidents" / f"{number:04d}" / "capsule"
        capsule.write(folder, facts_of(options, start), {}, list(dict.fromkeys(files)))


def facts_of(options: Options, start: Beginning) -> dict[str, Any]:
    """How the script was started."""
    return {
        "kind": "script",
        "target": options.target,
        "arguments": list(options.arguments),
        "module": options.module,
        "folder": start.folder,
        "threads": start.threads,
        "hash_seed": start.hash_seed,
        "python_random": [list(part) if isinstance(part, tuple) else part for part in start.python],
        "numpy_random": _plain_numpy(start.numpy),
    }


def _plain_numpy(state: Any) -> Any:
    return None if state is None else [part.tolist() if hasattr(part, "tolist") else part for part in state]


def beginning_of(facts: dict[str, Any]) -> Beginning:
    """The world before the script, from the facts of a capsule."""
    start = Beginning()
    version, numbers, gauss = facts["python_random"]
    start.python = (version, tuple(numbers), gauss)
    numpy = facts.get("numpy_random")
    start.numpy = None if numpy is None else tuple(numpy)
    start.threads, start.folder, start.hash_seed = facts["threads"], facts["folder"], facts["hash_seed"]
    return start
