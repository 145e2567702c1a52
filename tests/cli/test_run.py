"""`stayfinite run` as a command: the script's own output, exit code and signals, and what is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import preloaded
from stayfinite.cli import main

RUN = [sys.executable, "-m", "stayfinite", "run"]


def script(folder: Path, source: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return preloaded.run(command, cwd=cwd, env=environment, timeout=300)


def incidents(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] == 1
    found: list[dict[str, Any]] = document["incidents"]
    return found


TRAINING = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    for step in range(6):
        x = torch.randn(8, 4)
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(sys.argv[1:], __name__, [float(p.double().sum()).hex() for p in net.state_dict().values()])
"""


def test_a_healthy_script_is_left_as_it_is(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as `run` has it: threads change the last bits
    plain = preloaded.run([sys.executable, path.name, "--lr", "3"], cwd=tmp_path, env=one_thread)
    watched = run("--format", "json", "--output", "out.json", path.name, "--lr", "3", cwd=tmp_path)
    assert watched.stdout == plain.stdout and "['--lr', '3'] __main__" in watched.stdout
    assert (watched.returncode, watched.stderr) == (0, "")
    assert incidents(tmp_path / "out.json") == []


def test_a_script_is_compiled_without_our_future_imports(tmp_path: Path) -> None:
    """Annotations stay types: parsers of settings make numbers of options by them."""
    source = """
        import argparse
        from dataclasses import dataclass, fields

        @dataclass
        class Settings:
            steps: int = 4

        parser = argparse.ArgumentParser()
        for field in fields(Settings):
            parser.add_argument("--" + field.name, type=field.type, default=field.default)
        print(parser.parse_args().steps * 2)
    """
    done = run(script(tmp_path, source), "--steps", "8", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "16\n", "")


def test_the_interpreter_is_as_python_has_it(tmp_path: Path) -> None:
    """run loads torch without collecting garbage, and starts itself anew to know the seed of hashes."""
    source = """
        import gc, os, sys
        print(gc.isenabled(), gc.get_threshold(), sys.flags.hash_randomization)
        print(sorted(name for name in os.environ if "HASH" in name or name.startswith("STAYFINITE")))
    """
    path = script(tmp_path, source)
    plain = subprocess.run([sys.executable, path.name], cwd=tmp_path, capture_output=True, text=True)
    watched = subprocess.run([*RUN, path.name], cwd=tmp_path, capture_output=True, text=True)
    assert watched.stdout == plain.stdout and watched.returncode == 0, watched.stderr


FAILING = """
    import random
    import sys
    import torch
    from torch import nn

    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    bad = random.randrange(4, 9)
    for step in range(12):
        x = torch.randn(8, 4)
        seen = torch.zeros(8) if step == bad else torch.ones(8)
        loss = (net(x).squeeze(1).pow(2) * seen).sum() / seen.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("bad step", bad)
    sys.exit(3)
"""


def test_a_failing_script_is_located_by_a_second_run_with_the_same_random_numbers(tmp_path: Path) -> None:
    path = script(tmp_path, FAILING)
    done = run("--format", "json", "--output", "out.json", "--run-dir", "runs/a", path.name, cwd=tmp_path)
    assert done.returncode == 3
    bad = int(done.stdout.split()[-1])
    (incident,) = incidents(tmp_path / "out.json")
    assert incident["step"] == bad and incident["reproduced"]
    assert incident["birth"]["line"] == 13 and incident["birth"]["op"] == "aten.div.Tensor"
    assert incident["findings"][0]["cause"] == "EMPTY_REDUCTION"
    assert [record["step"] for record in incident["history"]] == list(range(bad + 1))
    assert json.loads((tmp_path / "runs/a/incidents/0001/incident.json").read_text()) == incident
    assert "Born at" in done.stderr and ">   13 |" in done.stderr and "Do not" in done.stderr


def test_an_uncaught_error_keeps_its_traceback_and_gets_its_reason(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import torch

        def attend(scores, keep):
            return torch.softmax(scores.masked_fill(~keep, float("-inf")), -1)

        weights = attend(torch.randn(2, 3), torch.tensor([[True, True, True], [False, False, False]]))
        torch.multinomial(weights, 1)
        """,
    )
    done = run("--format", "json", "--output", "out.json", path.name, cwd=tmp_path)
    assert done.returncode == 1
    assert "probability tensor contains" in done.stderr and "stayfinite/launch" not in done.stderr
    (incident,) = incidents(tmp_path / "out.json")
    assert incident["trigger"] == "exception" and incident["birth"]["line"] == 5


def test_an_ordinary_bug_is_no_incident(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    done = run("--format", "json", "--output", "out.json", path.name, cwd=tmp_path)
    assert done.returncode == 1 and "shapes cannot be multiplied" in done.stderr
    assert incidents(tmp_path / "out.json") == []


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    path = script(tmp_path, "x = 1\nif x\n    pass\n")
    done = run(path.name, cwd=tmp_path)
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr and "line 2" in done.stderr


def test_a_module_is_run_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    script(tmp_path / "job", "LIMIT = 3", "__init__.py")
    script(
        tmp_path / "job",
        "from job import LIMIT\nimport sys\nprint(__name__, LIMIT, sys.argv[1:])",
        "train.py",
    )
    done = run("-m", "job.train", "--fast", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ 3 ['--fast']\n")


def test_a_hard_exit_still_writes_the_record(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os
        import torch

        x = torch.zeros(3, requires_grad=True)
        (x / x).sum().backward()
        os._exit(5)
        """,
    )
    done = run("--format", "json", "--output", "out.json", path.name, cwd=tmp_path)
    assert done.returncode == 5
    assert [incident["birth"]["line"] for incident in incidents(tmp_path / "out.json")] == [6]


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX knows them")
def test_ctrl_c_ends_it_as_it_ends_python(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    command = [*RUN, "--format", "json", "--output", "out.json", path.name]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    assert incidents(tmp_path / "out.json") == []


def test_threads_that_are_no_daemons_are_waited_for(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import threading, time

        def late():
            time.sleep(0.3)
            print("late", flush=True)

        threading.Thread(target=late).start()
        print("main", flush=True)
        """,
    )
    done = run(path.name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "main\nlate\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.py"], "there is no such script"),
        (["accelerate", "launch", "here.py"], "`accelerate launch ... -m stayfinite run train.py`"),
        (["-m", "accelerate.commands.launch", "here.py"], "which would not be guarded"),
        (["deepspeed", "here.py"], "`deepspeed ... --module stayfinite run train.py`"),
        (["--format", "json", "here.py"], "--output"),
        (["--locate", "sometimes", "here.py"], "sometimes"),
        (["--max-incidents", "0", "here.py"], "max-incidents"),
    ],
)
def test_wrong_usage_is_said_plainly(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("", encoding="utf-8")
    result = CliRunner().invoke(main, ["run", *arguments])
    assert result.exit_code == 2
    assert says in result.output
