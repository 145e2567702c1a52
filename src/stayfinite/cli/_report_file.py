"""Where a report may be written: over an earlier report of ours, never over an input or anything else."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click

_LOOKED_AT = 1 << 20
_REPORT = re.compile(
    r"""\A\{\s*"schema":\s1,\s*"(findings|incidents|differences|drill)":  # our JSON
    | "name":\s"stayfinite"  # SARIF
    | ^::(notice|warning|error)\ title=  # GitHub
    | ^\s*(info|warning|error)\s+[A-Z]{3}\d{3}\ | ^\d+\ checkpoints?, | tensors\ differ$ | ^last\ good:
    | \Astayfinite\ doctor:\ | \Astayfinite:\ fire\ drill\b
    | ^<meta\ name="generator"\ content="stayfinite | ^wrote\ """,
    re.MULTILINE | re.VERBOSE,
)


def check_output(path: Path | None, inputs: Iterable[str] = ()) -> None:
    """Refuse an --output that is an input, or is a file that is no report of ours."""
    if path is None:
        return
    for given in inputs:
        place = Path(given).resolve()
        if path.resolve() == place:
            raise click.UsageError(f"--output {path} is one of the inputs; name another file")
    if not path.parent.is_dir():
        raise click.UsageError(f"--output {path}: there is no folder {path.parent}")
    if os.path.lexists(path) and not _is_report(path):
        raise click.UsageError(
            f"--output {path} exists and is no report of stayfinite; name another file, or remove it first"
        )


def write_report(path: Path, text: str) -> None:
    """All or nothing, and only over an earlier report."""
    check_output(path)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".stayfinite-", delete=False
    ) as handle:
        handle.write(text)
    try:
        Path(handle.name).chmod(0o666 & ~_umask())
        Path(handle.name).replace(path)
    except OSError:
        Path(handle.name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    present = os.umask(0)
    os.umask(present)
    return present


def _is_report(path: Path) -> bool:
    """Empty, or recognisably one of ours. Devices and pipes take whatever they are given."""
    if not path.is_file():
        return path.exists() and not path.is_dir()
    try:
        with path.open("rb") as handle:
            text = handle.read(_LOOKED_AT).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not text.strip() or (path.suffix != ".py" and _REPORT.search(text) is not None)
