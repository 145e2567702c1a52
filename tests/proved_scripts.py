"""A script that is proved as `stayfinite run` does it, in this process; its patch must run clean by python alone."""

from __future__ import annotations

from pathlib import Path

import preloaded
import prove
from stayfinite.findings.trial import ProofReport, Tried


def proof(folder: Path, text: str) -> tuple[ProofReport, dict[str, Tried]]:
    script = folder / "train.py"
    script.write_text(text)
    report = prove.proof_of(script)
    if report.patch is not None:
        assert prove.patched_runs(script, report.patch, preloaded.run) == "clean"
    return report, {one.remedy: one for one in report.tried}
