"""run.jsonl: valid JSON at every moment, after a kill too; constant memory; the same numbers for every listener."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from stayfinite.watch.recorder import FLUSH_SECONDS, Recorder, RunDirectoryError


def lines_of(path: Path, after: int = 0) -> list[dict[str, Any]]:
    """Every whole line after the first ones; a last one without its newline is still being written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[after:-1] if line]


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def test_lines_are_valid_json_whatever_the_numbers(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.write({"step": 0, "loss": math.nan, "components": {"kl": -math.inf}, "lr": [1e-3, math.inf]})
    recorder.event({"event": "finding", "step": 0, "path": Path("a"), "text": "größer\nals 1"})
    recorder.close()
    text = recorder.path.read_text(encoding="utf-8")
    assert text.count("\n") == 2 and "NaN" not in text and "Infinity" not in text
    first, second = lines_of(recorder.path)
    assert first == {"step": 0, "loss": "nan", "components": {"kl": "-inf"}, "lr": [0.001, "inf"]}
    assert second["text"] == "größer\nals 1" and second["path"] == "a"


def test_an_event_is_readable_at_once_and_steps_within_a_moment(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in range(3):
        recorder.write({"step": step})
    assert lines_of(recorder.path) == [], "steps are buffered"
    recorder.event({"event": "rollback", "step": 3})
    assert [line["step"] for line in lines_of(recorder.path)] == [0, 1, 2, 3]
    recorder.write({"step": 4}, now=True)
    assert lines_of(recorder.path)[-1] == {"step": 4}
    recorder._flushed -= 2 * FLUSH_SECONDS  # as if that much time had passed
    recorder.write({"step": 5})
    assert lines_of(recorder.path)[-1] == {"step": 5}
    recorder.close()


WRITER = """
import sys
from pathlib import Path
from stayfinite.watch.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]))
print("ready", flush=True)
step = 0
while True:
    recorder.write({"step": step, "loss": 1.0 / (step + 1), "lr": [1e-3], "text": "x" * (step % 300)})
    if step % 1000 == 0:
        recorder.event({"event": "mark", "step": step})
    step += 1
"""


def test_valid_while_it_is_written_and_after_a_kill(tmp_path: Path) -> None:
    last: list[int] = []
    for _ in range(3):
        child = python(WRITER, str(tmp_path))
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        read = 0
        deadline = time.monotonic() + 30
        while read < 3000 and time.monotonic() < deadline:
            read = len(lines_of(tmp_path / "run.jsonl", after=len(last)))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        Recorder(tmp_path).close()  # the next run ends the line that the killed one left half written
        steps: list[int] = []
        broken = 0
        for line in (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines():
            try:
                steps.append(json.loads(line)["step"])
            except json.JSONDecodeError:
                broken += 1
        assert broken <= 1 + len([step for step in last if step < 0])
        assert len(steps) > len(last) + 2000
        last = steps + [-1] * broken


def test_half_a_line_of_a_killed_run_is_not_glued_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text('{"step":0}\n{"step":1,"lo', encoding="utf-8")
    recorder = Recorder(tmp_path)
    recorder.write({"step": 2})
    recorder.close()
    text = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    assert text == ['{"step":0}', '{"step":1,"lo', '{"step":2}']


MANY_STEPS = """
import resource, sys
from pathlib import Path
from stayfinite.watch.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]))
line = {"loss": 0.5, "lr": [1e-3]}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for step in range(200_000):
    recorder.write({"step": step, **line})
    if step == 20_000:
        early = peak()
recorder.close()
print(peak() - early, len(recorder.history))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_many_steps_take_constant_memory(tmp_path: Path) -> None:
    child = python(MANY_STEPS, str(tmp_path))
    output, _ = child.communicate()
    grown_kb, history = map(int, output.split())
    assert grown_kb < 1024 and history == 20  # six bytes a step would be more
    with (tmp_path / "run.jsonl").open("rb") as file:
        count = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    assert count == 200_000


def test_every_listener_gets_the_line_that_is_written(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    recorder = Recorder(tmp_path, listeners=[heard.append])
    recorder.write({"step": 1, "loss": math.inf})
    recorder.event({"event": "start", "step": 1})
    recorder.close()
    assert heard == [{"step": 1, "loss": "inf"}]
    assert list(recorder.history) == heard


def test_a_tensorboard_writer_gets_finite_numbers_under_names(tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: dict[str, tuple[float, int]] = {}

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.scalars[tag] = (value, step)

    writer = Writer()
    recorder = Recorder(tmp_path, listeners=[writer])
    recorder.write(
        {"step": 7, "loss": 0.5, "grad_norm": math.nan, "components": {"kl": 0.1, "bad": math.inf},
         "lr": [1e-3, 1e-4], "action": "none", "memory_mb": None}
    )  # fmt: skip
    recorder.close()
    assert writer.scalars == {
        "stayfinite/loss": (0.5, 7),
        "stayfinite/components/kl": (0.1, 7),
        "stayfinite/lr/0": (1e-3, 7),
        "stayfinite/lr/1": (1e-4, 7),
        "stayfinite/applied": (1.0, 7),
        "stayfinite/nonfinite/grad_norm": (1.0, 7),
        "stayfinite/nonfinite/components/bad": (1.0, 7),
    }


def test_what_cannot_listen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"listeners=\[\.\.\.\].*got a int"):
        Recorder(tmp_path, listeners=[3])


def test_a_directory_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=r"Choose a writable directory with Guard\(run_dir=\.\.\.\)"):
        Recorder(tmp_path / "file" / "run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_is_said_once_and_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"No space left on device\. The training goes on") as caught:
        recorder.event({"event": "start", "step": 0})
        for step in range(5):
            recorder.write({"step": step}, now=True)
        recorder.close()
    assert len(caught) == 1
    assert [line["step"] for line in recorder.history] == list(range(5)), "incidents still have their history"


def test_writing_after_close_is_said_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.close()
    with pytest.warns(RuntimeWarning, match="can no longer write") as caught:
        recorder.write({"step": 1})
        recorder.write({"step": 2})
    assert len(caught) == 1


def test_a_directory_that_was_removed_is_said_and_made_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.write({"step": 0}, now=True)
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="removed or moved while the run wrote it"):
        recorder.write({"step": 1}, now=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.write({"step": 2}, now=True)
    recorder.close()
    assert [line["step"] for line in lines_of(recorder.path)] == [1, 2]
