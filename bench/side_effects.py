"""Scripts that write, delete, send and signal while they train: does locating their failure do any of it twice?

Usage: python bench/side_effects.py [--only TEXT ...] [--sandbox landlock|none] [--jobs 2]

Each script runs with `--locate off` and with the default options, in a world of its own. The table says whether both
left the same files (content and time) and messages, and whether the failure was located at the right line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "sandbox"))

from side_effects.table import SCRIPTS, Script
from side_effects.trial import Trial, differences, tried


def both(script: Script, sandbox: str) -> tuple[Script, Trial, list[str]]:
    with tempfile.TemporaryDirectory(prefix="side-effects-", ignore_cleanup_errors=True) as folder:
        off = tried(script, Path(folder), "--locate", "off", sandbox=sandbox)
        on = tried(script, Path(folder), sandbox=sandbox)
    return script, on, differences(off, on)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="scripts whose name contains one of these")
    parser.add_argument("--sandbox", default="", help="force a weaker sandbox: landlock, none")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = [s for s in SCRIPTS if not asked.only or any(text in s.name for text in asked.only)]
    same = located = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for script, trial, differ in pool.map(partial(both, sandbox=asked.sandbox), chosen):
            right = script.born in trial.lines
            same, located = same + (not differ), located + right
            why = "; ".join(i.get("not_located", "") for i in trial.incidents) if not right else ""
            if not trial.incidents and not right:
                why = f"no incident: {trial.err[-300:]!r}"
            said = f"line {script.born}" if right else "not located"
            print(f"{script.name:28s} {'same' if not differ else 'DIFFERS':8s} {said:12s} {why}", flush=True)
            for line in differ:
                print(f"    {line}", flush=True)
    share = located / len(chosen)
    print(f"{len(chosen)} scripts: {same} left the same, {located} located at the right line ({share:.0%})")
    return 0 if same == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
