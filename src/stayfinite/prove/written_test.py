"""The test of a patch: it fails on the script as it was, and passes on the patched one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TEST = '''"""{title}

Fails while the failure is there, passes when it is cured. Written by `stayfinite replay --test`.
"""

import json
import os
import subprocess
import sys
import tempfile

SCRIPT = {script!r}
ARGUMENTS = {arguments!r}
FOLDER = {folder!r}
LINE = {line}


def test_the_step_stays_finite() -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "incidents.json")
        command = [sys.executable, "-m", "stayfinite", "run", "--policy", "watch", "--no-prove"]
        command += ["--format", "json", "--output", output, SCRIPT, *ARGUMENTS]
        environment = {{**os.environ, "PYTHONHASHSEED": {seed!r}}}
        subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, timeout=600)
        with open(output, encoding="utf-8") as file:
            incidents = json.load(file)["incidents"]
    errors = [
        f"step {{one['step']}}, line {{one['birth'] and one['birth']['line']}}: {{finding['message']}}"
        for one in incidents
        for finding in one["findings"]
        if finding["severity"] == "error"
    ]
    assert not errors, errors[0]
'''


def test_of(facts: dict[str, Any], title: str, line: int | None) -> str:
    """The source of the test for the failure of a script."""
    target = str(Path(facts["folder"]) / facts["target"]) if not facts["module"] else facts["target"]
    script = ["-m", target] if facts["module"] else [target]
    text = _TEST.format(
        title=title.replace('"""', "'''").replace("\\", "\\\\"),
        script=script[-1],
        arguments=facts["arguments"],
        folder=facts["folder"],
        line=line,
        seed=facts["hash_seed"] or "0",
    )
    return (
        text.replace('"json", "--output", output, SCRIPT', '"json", "--output", output, "-m", SCRIPT')
        if facts["module"]
        else text
    )
