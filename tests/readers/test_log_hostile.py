"""Logs that are damaged, huge in one line, or no logs: one clear sentence, bounded memory, nothing lost."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from stayfinite.logs import UnreadableLog, read_log
from training_logs.written import WRITERS, json_lines, tensorboard


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("empty.log", b"", "empty"),
        ("binary.bin", bytes(range(256)) * 20, "not a log"),
        ("zeros.log", b"\x00" * 5000, "not a log"),
        ("zeros.csv", b"\x00" * 5000, "not a log"),
        ("words.txt", b"nothing here but words\nand more of them\n", "no number with a name"),
        ("list.json", b"[1, 2, 3]", "without a list of records"),
        ("broken.json", b'{"log_history": [{"loss": 1', "not valid JSON"),
        ("cut.jsonl.gz", gzip.compress(b'{"loss": 1}\n' * 5000)[:-30], "cut off"),
        ("x.tfevents.1", b"\xff" * 400, "damaged"),
    ],
)
def test_one_clear_sentence(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableLog, match=words) as trouble:
        read_log(str(path))
    assert str(trouble.value).startswith(str(path))


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="No such file"):
        read_log(str(tmp_path / "none.log"))
    with pytest.raises(UnreadableLog, match="folder"):
        read_log(str(tmp_path))


def test_an_enormous_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("w") as handle:
        handle.write('{"step": 1, "loss": 2.0}\n')
        handle.write('{"blob": "' + "x" * (12 << 20) + '"}\n')
        handle.write('{"step": 2, "loss": 1.0}\n' * 5)
    log = read_log(str(path))
    assert log.series["loss"].count == 6


def test_hostile_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"loss": 1.0, "step": 1}',
        "{" * 5000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        '{"loss": ' + "9" * 5000 + "}",
        '{"loss": 1e999}',
        '{"loss": [' + ",".join(["1"] * 10000) + "]}",
        '{"": 5, "loss": true}',
        '{"loss": "\\ud800"}',
        "\x00\x01\x02",
        '{"loss": 2.0, "step": 2}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
    log = read_log(str(path))
    assert log.series["loss"].count >= 3 and log.series["loss"].inf >= 1


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"caf\xe9 step 1 loss=0.5\nstep 2 loss=0.25 \xff\xfe\n")
    assert read_log(str(path)).series["loss"].count == 2


@pytest.mark.parametrize("form", WRITERS)
def test_any_flipped_or_missing_bytes_end_in_a_log_or_a_sentence(form: str, tmp_path: Path) -> None:
    name, write = WRITERS[form]
    path = write(tmp_path / name)
    data = path.read_bytes()
    rng = random.Random(form)
    for trial in range(25):
        changed = bytearray(data[: rng.randrange(len(data))] if trial % 3 == 0 else data)
        for _ in range(rng.randrange(1, 20)):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(bytes(changed))
        try:
            log = read_log(str(path))
        except UnreadableLog as trouble:
            assert str(path) in str(trouble)
        else:
            assert log.records > 0


def test_a_half_written_last_line_is_no_failure(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl", [{"step": s, "loss": 1.0} for s in range(10)])
    path.write_text(path.read_text() + '{"step": 10, "lo')
    log = read_log(str(path))
    assert log.records == 10 and log.trouble is None


def test_a_half_written_event_is_no_failure(tmp_path: Path) -> None:
    path = tensorboard(tmp_path / "tb")
    path.write_bytes(path.read_bytes()[:-9])
    assert read_log(str(path)).records > 100


def test_a_new_name_in_every_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"step": s, f"loss_{s}": 1.0}) + "\n" for s in range(6000)))
    assert len(read_log(str(path)).series) <= 2000


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_what_would_keep_the_reader_waiting_is_named() -> None:
    ours, theirs = os.openpty()
    try:
        with pytest.raises(UnreadableLog, match="without waiting"):
            read_log(os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)
