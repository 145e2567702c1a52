"""Inside the sandbox: `python -m stayfinite.launch.proving FOLDER` tries remedies on the script and tells in FOLDER."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # what tracing needs is loaded once, here, and not in every trial

from stayfinite.findings import dumps
from stayfinite.findings.rule import all_rules
from stayfinite.launch import beginning
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove.counterfactual import Counterfactual, ReportedBirth
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.remedies.remedy import all_remedies


def main(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    state = Path(os.environ.pop(beginning.VARIABLE))
    options = Options(task["target"], tuple(task["arguments"]), module=task["module"])
    torch.set_num_threads(1)  # a process whose threads run cannot fork; the script gets its own number
    all_rules()
    all_remedies()
    gc.collect()
    gc.freeze()  # what is loaded here is nobody's garbage in a trial
    progress = folder / "proof.progress"

    def say(text: str) -> None:
        progress.write_text(text, encoding="utf-8")

    def run(plan: Plan, seconds: float) -> TrialResult:
        return run_trial(options, state, plan, seconds, in_a_copy=task["in_a_copy"])

    proof = Counterfactual(run, task["seconds"], say)
    report = proof.report(ReportedBirth(task["file"], task["line"], task["step"], task["op"]))
    (folder / "proof.part").write_text(dumps(report.to_json()), encoding="utf-8")
    (folder / "proof.part").replace(folder / "proof.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
