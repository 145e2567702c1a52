"""A probe of a checkpoint: the user's own function, called with the path, in a process of its own.

It runs the user's code, so it happens only when the user names one. Whatever else can try a checkpoint (the five
batteries of a model, say) takes its place by being callable in the same way: see `examine.Probe`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CALL = """
import importlib.util, json, math, sys
file, function, checkpoint = sys.argv[1:4]
sys.path.insert(0, file.rpartition("/")[0] or ".")
spec = importlib.util.spec_from_file_location("probed_by_stayfinite", file)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
values = getattr(module, function)(checkpoint)
values = values if isinstance(values, dict) else {"value": values}
bad = []
for name, value in values.items():
    flat = value.detach().double().flatten().tolist() if hasattr(value, "detach") else [float(value)]
    wrong = [one for one in flat if not math.isfinite(one)]
    if wrong:
        bad.append([str(name), str(wrong[0]), len(wrong), len(flat)])
print("\\nstayfinite-probe " + json.dumps({"values": len(values), "bad": bad}))
"""
_MARK = "stayfinite-probe "


class WrongProbe(Exception):
    """The probe that was named does not exist, or cannot be called; the message says why."""


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """FILE.py:FUNCTION. The function takes the path of a checkpoint and gives a number, a tensor, or a dict."""

    file: Path
    function: str
    seconds: float = 300.0

    @classmethod
    def parse(cls, text: str, seconds: float = 300.0) -> FunctionProbe:
        file, _, function = text.rpartition(":")
        if not file.endswith(".py") or not function.isidentifier():
            raise WrongProbe(f"--probe {text}: name a file and a function in it, for example check.py:values")
        if not Path(file).is_file():
            raise WrongProbe(f"--probe {text}: there is no file {file}")
        return cls(Path(file).resolve(), function, seconds)

    def __call__(self, checkpoint: str) -> str | None:
        path = str(Path(checkpoint).resolve())
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CALL, str(self.file), self.function, path],
                capture_output=True, text=True, errors="replace", timeout=self.seconds, cwd=self.file.parent,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise WrongProbe(
                f"{self.file}:{self.function} gave no answer within {self.seconds:g} s"
            ) from late
        answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
        if done.returncode != 0 or not answers:
            last = (done.stderr.strip().splitlines() or ["it ended without an answer"])[-1]
            raise WrongProbe(f"{self.file}:{self.function} failed on {checkpoint}: {last}")
        answer = json.loads(answers[-1].removeprefix(_MARK))
        if not answer["bad"]:
            return None
        name, value, wrong, of = answer["bad"][0]
        return f"{name} is {value}" + (f" ({wrong} of {of} values)" if of > 1 else "")
