"""The model before its training: `stayfinite probe` of the project's factory, in a sandbox and within a time.

It imports the project's code, so it runs where the kernel keeps that harmless, and nowhere else.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from stayfinite.findings import Finding
from stayfinite.sandbox import process, support

CONVENTION = ("probe.py", "factory")
_SEARCH_SECONDS, _AT_LEAST, _AT_MOST = 5.0, 180.0, 600.0


@dataclass(frozen=True, slots=True)
class ModelFactory:
    """module:factory (or file.py:factory) of a project, and who named it."""

    name: str
    folder: Path
    named: bool  # by the user, on the command line or in pyproject.toml; else found as probe.py:factory


@dataclass(slots=True)
class ModelProbe:
    """What the probe found, or why there was none."""

    findings: list[Finding] = field(default_factory=list)
    not_run: str = ""  # a sentence


def find_factory(
    root: str, asked: str | None, settings_name: str | None, settings_file: Path | None
) -> ModelFactory | None:
    """The factory that was asked for, that the settings name, or `factory` in the project's probe.py."""
    if asked is not None:
        return ModelFactory(asked, Path.cwd(), named=True)
    if settings_name is not None and settings_file is not None:
        return ModelFactory(settings_name, settings_file.parent, named=True)
    file, function = CONVENTION
    place = Path(root) / file
    if place.is_file() and takes_nothing(place, function):
        return ModelFactory(f"{Path(file).stem}:{function}", Path(root), named=False)
    return None


def takes_nothing(file: Path, function: str) -> bool:
    """Whether this file defines such a function without required arguments. Read, not imported."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            given = node.args
            needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            return needed == 0 and all(default is not None for default in given.kw_defaults)
    return False


def probe_model(factory: ModelFactory, root: str, seconds: float) -> ModelProbe:
    """Run the batteries, a short search and a short training at the learning rate, on copies, in a sandbox."""
    found = ModelProbe()
    kind = support.sandbox().kind
    if kind == "none" or (kind == "landlock" and not factory.named):
        found.not_run = (
            f"{factory.name} was not probed: it imports the project's code, and there is no sandbox for it here; "
            f"stayfinite probe {factory.name} runs it without one"
        )
        return found
    limit = min(_AT_MOST, max(_AT_LEAST, seconds))
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        exchange = Path(folder)
        report, errors = exchange / "probe.json", exchange / "stderr"
        command = process.python_module("stayfinite", "probe", factory.name, "--stress")
        command += ["--budget", str(_SEARCH_SECONDS), "--format", "json", "--output", str(report)]
        with errors.open("wb") as said:
            done = process.run(
                command,
                kind,
                limit,
                folder=str(factory.folder.resolve()),
                exchange=exchange,
                stderr=said.fileno(),
            )
        if report.exists():
            data = json.loads(report.read_text(encoding="utf-8"))
            found.findings = [_placed(Finding.from_json(item), root) for item in data["findings"]]
        else:
            words = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
            found.not_run = f"{factory.name} was not probed: it {done.sentence}" + (
                f" ({words[-1].removeprefix('Error: ')[:300]})" if words[-1] else ""
            )
    return found


def _placed(finding: Finding, root: str) -> Finding:
    """Named as the doctor names files: from where it was started."""
    if finding.file is None:
        return finding
    inside = os.path.relpath(finding.file, Path(root).resolve())
    if inside.startswith(".."):
        return finding
    return replace(finding, file=os.path.normpath(os.path.join(root, inside)))  # noqa: PTH118 - keeps "./"
