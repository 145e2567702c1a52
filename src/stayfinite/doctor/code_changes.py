"""What changed in the code since a checkpoint was written: by git where there is a repository, else by file times."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

_PATIENCE = 20
# Nothing that a repository's own configuration names may run because somebody asked what changed.
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "-c", "core.hooksPath=/dev/null")
_CODE = (".py", ".yaml", ".yml", ".json", ".toml", ".sh")


@dataclass(slots=True)
class CodeChanges:
    """Files that are not what they were, and how that is known."""

    since: str
    by: str  # "git", "file times"
    files: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0


def code_since(root: str, written: float, files: Sequence[str]) -> CodeChanges:
    """Commits after that time, and files of the project that were written after it."""
    moment = datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    newer = [path for path in files if path.endswith(_CODE) and _time(path) > written]
    before = (
        _git(root, "rev-list", "-1", f"--before=@{int(written)}", "HEAD") if shutil.which("git") else None
    )
    if before is None:
        return CodeChanges(moment, "file times", sorted(newer))
    made = CodeChanges(moment, "git")
    base = before.strip()
    if base:
        made.commits = (_git(root, "log", "--format=%h %s", f"{base}..HEAD", "--", ".") or "").splitlines()
        numbers = _git(
            root, "diff", "--numstat", "--relative", "--no-ext-diff", "--no-textconv", base, "HEAD", "--", "."
        )
        for line in (numbers or "").splitlines():
            added, removed, name = line.split("\t", 2)
            if not name.endswith(_CODE):
                continue
            made.files.append(str(Path(root, name)))
            made.added += int(added) if added.isdecimal() else 0
            made.removed += int(removed) if removed.isdecimal() else 0
    # Not committed: seen by the time of writing, without asking git to look at the working tree.
    made.files = sorted({*made.files, *newer})
    return made


def _time(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0  # gone meanwhile


def _git(root: str, *command: str) -> str | None:
    """The output; None where this is no repository, or git will not answer."""
    surroundings = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *_HARMLESS, "--no-pager", "-C", root, *command],
            capture_output=True, text=True, timeout=_PATIENCE, env=surroundings, errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
