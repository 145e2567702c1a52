"""The progress line and the sentences on refused steps: what a person reads."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys

import pytest

from stayfinite.findings import TensorSummary
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import SpikeFacts, StateTensor
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.report.progress import Progress, describe
from stayfinite.report.refusal import sentence

COUNTS = {"applied": 119, "skipped": 1, "rolled_back": 0}


def test_the_line_says_loss_norm_rate_and_counts() -> None:
    line = {"step": 120, "loss": 2.3123, "grad_norm": 0.84, "lr": [3e-4, 3e-4, 1e-5]}
    assert describe(line, COUNTS) == (
        "step 120 | loss 2.312 | norm 0.84 | lr 0.0003/1e-05 | applied 119 | skipped 1"
    )


def test_the_line_with_a_scale_a_rollback_and_numbers_that_are_none() -> None:
    line = {"step": 3, "loss": "nan", "grad_norm": "inf", "lr": [], "scale": 1024.0}
    text = describe(line, {**COUNTS, "rolled_back": 7})
    assert text == "step 3 | loss nan | norm inf | scale 1024 | applied 119 | skipped 1 | rolled back 7"
    assert describe({"step": 0, "loss": None, "grad_norm": 1.0, "lr": None}, COUNTS).startswith(
        "step 0 | norm 1"
    )


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress("nothing")
    progress.event("something", "stop")
    progress.step({"step": 1}, COUNTS)
    progress.close()
    assert capfd.readouterr() == ("", "")


def test_events_go_to_stderr_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    """Names with brackets are no markup, and a long line is not broken."""
    progress = Progress("everything")
    progress.event("batch['image'][0] [bold]holds[/bold] " + "x" * 200, "warning")
    out, err = capfd.readouterr()
    assert out == "" and err == "stayfinite: batch['image'][0] [bold]holds[/bold] " + "x" * 200 + "\n"


def test_elsewhere_than_on_a_terminal_lines_are_few(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress("everything")
    for step in range(1000):
        progress.step({"step": step, "loss": 1.0}, COUNTS)
    assert capfd.readouterr().err == "", "the first plain line comes after a while"
    progress._shown -= 60  # as if a minute had passed
    progress.step({"step": 1000, "loss": 1.0}, COUNTS)
    assert capfd.readouterr().err == "step 1000 | loss 1 | applied 119 | skipped 1\n"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_on_a_terminal_one_line_is_redrawn() -> None:
    code = (
        "import time\n"
        "from stayfinite.report.progress import Progress\n"
        "p = Progress('everything')\n"
        "for step in range(3):\n"
        "    time.sleep(0.12); p.step({'step': step, 'loss': 1.0}, {'applied': 1, 'skipped': 0, 'rolled_back': 0})\n"
        "p.event('a word in between', 'warning')\n"
        "p.close()\n"
    )
    master, slave = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    subprocess.run([sys.executable, "-c", code], stderr=slave, env=environment, check=True)
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert "step 2 | loss 1" in shown and "\x1b[" in shown
    assert "stayfinite: a word in between" in shown


def a_tensor(name: str) -> TensorSummary:
    return TensorSummary(name, (2,), "float32", nan=1, inf=2)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {
                "trigger": "loss",
                "loss": math.nan,
                "components": {"kl": math.nan},
                "batch": (Operand(a_tensor("batch[0]"), "batch"),),
            },
            "the loss is nan (component kl); batch[0] holds 1 NaN and 2 Inf",
        ),
        ({"trigger": "loss", "loss": math.inf, "rank": 3}, "the loss is inf on rank 3"),
        (
            {"trigger": "gradient", "bad_gradients": tuple("abcde")},
            "the gradient is not finite: a, b, c and 2 more",
        ),
        (
            {"trigger": "gradient", "norm_overflowed": True},
            "the sum of the squared gradients is beyond float32",
        ),
        (
            {"trigger": "parameter", "state": (StateTensor("average", "ema.w", 1, 2, 4),)},
            "kept state is not finite: ema.w",
        ),
        (
            {
                "trigger": "parameter",
                "bad_update": True,
                "state": (StateTensor("optimizer state", "Adam[w].exp_avg", 1, 2, 4),),
            },
            "the optimizer's update made Adam[w].exp_avg non-finite and was undone",
        ),
        (
            {
                "trigger": "parameter",
                "bad_update": True,
                "state": (StateTensor("optimizer state", "Adam[w].exp_avg", 1, 2, 4, before=True),),
            },
            "Adam[w].exp_avg held NaN or Inf before the optimizer's update, which was undone",
        ),
        (
            {
                "trigger": "parameter",
                "bad_update": True,
                "state": (
                    StateTensor("parameter", "w", 1, 0, 4),
                    StateTensor("optimizer state", "Adam[w].exp_avg", 1, 2, 4, before=True),
                ),
            },
            "the optimizer's update made w non-finite (Adam[w].exp_avg held NaN or Inf before it) and was undone",
        ),
        (
            {
                "trigger": "parameter",
                "bad_update": True,
                "state": (
                    StateTensor("optimizer state", "Adam[w].exp_avg_sq", 0, 1, 4),
                    StateTensor("buffer", "bn.running_var", 0, 1, 4),
                ),
            },
            "the optimizer's update made Adam[w].exp_avg_sq non-finite (bn.running_var held NaN or Inf before it)",
        ),
        (
            {"trigger": "spike", "spikes": (SpikeFacts("loss", 900.0, 2.0),)},
            "a spike: loss 900, typically 2",
        ),
    ],
)
def test_a_refused_step_in_one_sentence(facts: dict[str, object], says: str) -> None:
    step = FailedStep(**{"step": 1, "phase": "forward", "loss": 1.0, "grad_norm": 1.0, **facts})  # type: ignore[arg-type]
    assert sentence(step).startswith(says)


@pytest.mark.parametrize("handled", [False, True])
def test_a_line_is_said_once_where_the_script_logs_to_the_terminal(
    handled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s | %(message)s"))
    if handled:
        logging.getLogger().addHandler(handler)
    try:
        Progress("everything").event("step 3: the loss is nan", "refusal")
    finally:
        logging.getLogger().removeHandler(handler)
    said = "stayfinite | step 3" if handled else "stayfinite: step 3"
    assert capsys.readouterr().err == f"{said}: the loss is nan\n"


def test_what_is_logged_to_a_stdout_that_goes_elsewhere_is_said_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger().addHandler(handler)
    try:
        Progress("everything").event("step 3: the loss is nan", "refusal")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err == "stayfinite: step 3: the loss is nan\n"
