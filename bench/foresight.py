"""How early are the three systems that grow foretold, and what is left of their guarded runs?

    python bench/foresight.py [SYSTEM ...] [--seeds 0 1 2] [--threads 1] [--without-proofs]

Every run is examples/SYSTEM/train_guarded.py in a process of its own, to its end. Steps are counted from 0; `ahead` is
the number of steps from the first forecast to the first step whose loss or gradient is not finite. Proofs run in forked
children and change nothing of a run: without them the table is the same, sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
METRICS = {"mhc_ocr": "character_accuracy", "latent_dlm": "masked_cross_entropy", "radiodiff": "nmse"}


WITHOUT_PROOFS = """
import stayfinite
made = stayfinite.Guard.__init__
stayfinite.Guard.__init__ = lambda self, *parts, **options: made(self, *parts, **{**options, "prove": "off"})
"""


def guarded(system: str, seed: int, threads: int, folder: Path, *, proofs: bool = True) -> dict[str, Any]:
    """One guarded run, and what it left behind."""
    code = f"import sys, torch; torch.set_num_threads({threads}); import train_guarded as t; t.main(sys.argv[1:])"
    code = code if proofs else WITHOUT_PROOFS + code
    path = filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-c", code, "--seed", str(seed), "--out", str(folder)],
        cwd=EXAMPLES / system,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES / system), *path])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    incidents = sorted((folder / "incidents").glob("*/incident.json"))
    incident = json.loads(incidents[0].read_text()) if incidents else {"findings": []}
    return {
        "forecasts": [line for line in lines if line.get("event") == "forecast"],
        "refused": [line["step"] for line in lines if line.get("action") in ("skip", "lower-lr", "rollback")],
        "first": next((finding["code"] for finding in incident["findings"]), "-"),
        "result": json.loads(done.stdout.splitlines()[-1]),
        "back": [line["what"] for line in lines if line.get("event") == "rollback"],
    }


def main(arguments: argparse.Namespace) -> None:
    print(
        f"{'system':12} {'seed':>4} {'fails':>5} {'forecast':>8} {'ahead':>5}  {'first finding':13} {'applied':>9} "
        f"{'metric':>7}  what grows"
    )
    for system in arguments.systems or METRICS:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as name:
                proofs, folder = not arguments.without_proofs, Path(name) / "run"
                seen = guarded(system, seed, arguments.threads, folder, proofs=proofs)
            fails = min(seen["refused"], default=None)
            forecast = seen["forecasts"][0] if seen["forecasts"] else None
            early = fails is not None and forecast is not None and forecast["step"] <= fails
            ahead = fails - forecast["step"] if early and fails is not None and forecast is not None else None
            result = seen["result"]
            applied = f"{result['applied']}/{result['steps']}"
            what = f"{forecast['what']}; {', '.join(forecast['modules'][:3])}" if forecast else "-"
            print(
                f"{system:12} {seed:4} {_or_dash(fails):>5} {_or_dash(forecast and forecast['step']):>8} "
                f"{_or_dash(ahead):>5}  {seen['first']:13} {applied:>9} {result[METRICS[system]]:7.2f}  {what}",
                flush=True,
            )
            for back in seen["back"]:
                print(f"{'':18}{back}")


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("systems", nargs="*", metavar="SYSTEM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-proofs", action="store_true")
    main(parser.parse_args())
