"""Do the five systems fail as their READMEs say, with any number of threads? python bench/systems_fail.py [SYSTEM ...]

Every system trains its own config.yaml with 1, 2 and 4 threads and 3 seeds, each run in a process of its own, with no
guard: the step (from 1) at which loss, gradient or update fail, and the first op of it that makes NaN or Inf of finite
numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 160
EXPECTED = {
    "temi_clustering": ("backward", "pow"),
    "mhc_ocr": ("forward", "convolution"),
    "latent_dlm": ("forward", "linalg_vector_norm"),
    "radiodiff": ("forward", "convolution"),
    "fp16_distillation": ("optimizer", "addcdiv"),
}


def train(system: str, threads: int, seed: int) -> None:
    """One run, in a process of its own; prints one line of JSON."""
    import torch

    sys.path.insert(0, str(ROOT / "tests"))
    from systems.first_nonfinite import first_bad_step
    from systems.load_example import load_example
    from systems.run_to_failure import run_to_failure

    torch.set_num_threads(threads)
    example = load_example(system)
    config = example.train.read_config(example.folder / "config.yaml")
    config["seed"] = seed
    if EXPECTED[system][0] == "forward":
        failure = run_to_failure(example, config, min(config["steps"], LIMIT), threads)
        step, birth = (failure.step, failure.birth) if failure is not None else (None, None)
    else:
        parts = example.train.build(config)
        batches = iter(parts.loader)
        found = first_bad_step(parts.optimizer, lambda: example.train.train_step(parts, next(batches)), LIMIT)
        step, birth = found if found is not None else (None, None)
    phase, op = (birth.phase, birth.op) if birth is not None else (None, None)
    print(json.dumps({"step": step, "phase": phase, "op": op}))


def main(chosen: list[str]) -> int:
    wrong = 0
    print(f"{'system':18} {'seed':>4} {'threads':>7} {'step':>5}  first op that is not finite")
    for system in chosen or EXPECTED:
        for seed in (0, 1, 2):
            for threads in (1, 2, 4):
                command = [sys.executable, __file__, "--one", system, str(threads), str(seed)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                seen = json.loads(done.stdout.splitlines()[-1])
                phase, op = EXPECTED[system]
                as_said = seen["phase"] == phase and op in str(seen["op"])
                wrong += not as_said
                what = f"{seen['op']} ({seen['phase']})" if seen["step"] else "stayed finite"
                remark = "" if as_said else "   NOT AS THE README SAYS"
                print(
                    f"{system:18} {seed:4} {threads:7} {seen['step'] or '-':>5}  {what}{remark}", flush=True
                )
    print(f"{wrong} of {9 * len(chosen or EXPECTED)} runs did not fail as their README says")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1:]))
