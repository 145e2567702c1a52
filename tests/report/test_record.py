"""run.jsonl as it is found in life: cut off, rotated, removed, begun again, hostile."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from report.written_runs import full_run, incident, step_line, vitals, write_incident, write_lines
from stayfinite.report.live.follower import RunFollower
from stayfinite.report.record.folder import NothingToShow, open_folder, runs_in
from stayfinite.report.record.heat import HeatMap
from stayfinite.report.record.lines import LineParser, Tail, parse, read_batches
from stayfinite.report.record.run import RunRecord


def read_all(tail: Tail) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while (batch := tail.read()) is not None:
        found += batch.lines
    return found


def steps_of(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_come_out_whole_however_they_come_in(size: int) -> None:
    data = "".join(json.dumps({"step": i, "ü": "€"}, ensure_ascii=False) + "\n" for i in range(20)).encode()
    parser, found = LineParser(), []
    for at in range(0, len(data), size):
        found += parser.feed(data[at : at + size]).lines
    assert steps_of(found) == list(range(20))


def test_what_is_no_json_object_is_counted_and_left_out() -> None:
    raw = [
        b'{"step":1}',
        b'{"step":2',
        b"[1,2]",
        b"\xff\xfe",
        b"",
        b'"text"',
        b"1,2",
        b"[" * 100_000,
        b'{"step":3}',
    ]
    batch = parse(raw)
    assert steps_of(batch.lines) == [1, 3]
    assert batch.broken == 6


def test_numbers_that_json_does_not_know_are_marks() -> None:
    record = RunRecord()
    record.feed(
        parse([b'{"step":0,"loss":NaN}', b'{"step":1,"loss":-Infinity}', b'{"step":2,"loss":1e999}']).lines
    )
    assert [bucket[2:] for bucket in record.series[("loss", "")].buckets.values()] == [
        [1, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
    ]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path, [step_line(0), step_line(1)])
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write('{"step":2,"lo')
    contents = open_folder(tmp_path)
    assert contents.record is not None
    assert contents.record.count == 2
    assert contents.broken_lines == 1


def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    write_lines(tmp_path, [{"step": i, "loss": 1.0} for i in (4, 5)])
    (tmp_path / "run.jsonl.1").write_text('{"step":2,"loss":1.0}\n{"step":3,"loss":1.0}\n')
    with gzip.open(tmp_path / "run.jsonl.10.gz", "wb") as file:
        file.write(b'{"step":0,"loss":1.0}\n{"step":1,"loss":1.0}\n')
    (tmp_path / "run.jsonl.11.gz").write_bytes(b"no archive")
    batches = list(read_batches(tmp_path))
    assert [step for batch in batches for step in steps_of(batch.lines)] == [0, 1, 2, 3, 4, 5]
    assert sum(batch.broken for batch in batches) == 1


def test_a_tail_survives_what_happens_to_the_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.read() is None  # it is not there yet
    write_lines(tmp_path, [{"step": 0}, {"step": 1}])
    assert steps_of(read_all(tail)) == [0, 1]
    with (tmp_path / "run.jsonl").open("a") as file:  # half a line now, the rest later
        file.write('{"step"')
        file.flush()
        assert read_all(tail) == []
        file.write(":2}\n")
    assert steps_of(read_all(tail)) == [2]
    write_lines(tmp_path, [{"step": 3}])
    (tmp_path / "run.jsonl").rename(tmp_path / "run.jsonl.1")  # rotated before it was read
    write_lines(tmp_path, [{"step": 4}])
    assert steps_of(read_all(tail)) == [3, 4]
    (tmp_path / "run.jsonl").write_text('{"step":9}\n')
    (tmp_path / "run.jsonl").write_text("")  # truncated
    assert read_all(tail) == []
    write_lines(tmp_path, [{"step": 5}])
    assert steps_of(read_all(tail)) == [5]
    (tmp_path / "run.jsonl").unlink()
    assert tail.read() is None
    write_lines(tmp_path, [{"step": 6}])
    assert steps_of(read_all(tail)) == [6]


def test_files_that_move_in_turn_are_read_whole(tmp_path: Path) -> None:
    tail, first = Tail(tmp_path), tmp_path / "run.jsonl"
    write_lines(tmp_path, [{"step": 0}])
    assert steps_of(read_all(tail)) == [0]
    write_lines(tmp_path, [{"step": 1}])
    first.rename(tmp_path / "run.jsonl.1")
    first.touch()  # nothing is in the new one yet, and the rest of the old one is not held back
    assert steps_of(read_all(tail)) == [1]
    write_lines(tmp_path, [{"step": 2}])
    for step in (3, 4):  # twice between two looks
        (tmp_path / "run.jsonl.1").replace(tmp_path / "run.jsonl.2")
        first.rename(tmp_path / "run.jsonl.1")
        write_lines(tmp_path, [{"step": step}])
    assert steps_of(read_all(tail)) == [2, 3, 4]


def test_a_folder_that_comes_rotated_is_followed_whole(tmp_path: Path) -> None:
    follower = RunFollower(tmp_path / "later")
    follower.poll()
    (tmp_path / "later").mkdir()
    write_lines(tmp_path / "later", [{"step": 0, "loss": 1.0}])
    (tmp_path / "later" / "run.jsonl").rename(tmp_path / "later" / "run.jsonl.1")
    write_lines(tmp_path / "later", [{"step": 1, "loss": 1.0}])
    follower.poll()
    assert follower.record.count == 2


def test_a_run_begun_again_in_the_same_folder_replaces_the_earlier_one() -> None:
    record = RunRecord()
    start = {"event": "start", "step": 0, "environment": {}}
    record.feed(
        [start, *(step_line(i) for i in range(10)), start, step_line(0, loss="nan", action="skip", what="x")]
    )
    assert (record.count, record.earlier_runs, record.refused) == (1, 1, 1)
    assert [line.get("event", line.get("action")) for line in record.events] == ["start", "skip"]


def test_a_run_that_is_resumed_goes_on() -> None:
    record = RunRecord()
    start = {"event": "start", "step": 0, "environment": {}}
    record.feed([start, *(step_line(i) for i in range(10)), start, *(step_line(i) for i in range(5, 15))])
    assert (record.count, record.earlier_runs, record.last_step) == (20, 0, 14)


def test_the_timeline_has_the_order_of_the_file(tmp_path: Path) -> None:
    record = open_folder(full_run(tmp_path / "a")).record
    assert record is not None
    kinds = [(line["step"], line.get("event", line.get("action"))) for line in record.events]
    assert kinds[:4] == [(0, "start"), (0, "finding"), (400, "incident"), (400, "skip")]
    assert (record.count, record.applied, record.refused) == (1200, 1196, 4)
    assert record.times_seen == {"0001": 3, "0002": 1}


def test_memory_does_not_grow_with_hostile_names() -> None:
    record = RunRecord()
    record.feed(
        [{"step": i, f"key {i}": 1.0, "components": {f"c{i}": 1.0}, "action": f"a{i}"} for i in range(500)]
    )
    for i in range(3000):
        record.feed(
            [
                {"event": "odd", "step": i},
                vitals(i, 3),
                {"event": "vitals", "step": i, "modules": {f"m{i}": [1]}},
            ]
        )
    assert len(record.series) <= 48 and len(record.series_left_out) <= 48
    assert len(record.action_steps) <= 13
    assert len(record.events) == 800 and record.events_left_out == 2700
    assert len(record.heat.modules) == 256 and len(record.heat.columns) <= 192


@pytest.mark.parametrize(
    "line",
    [
        {"step": -1, "loss": 1.0}, {"step": 2**60, "loss": 1.0}, {"step": 1.5, "loss": 1.0}, {"step": True},
        {"loss": 1.0}, {"step": None}, {"step": "7", "loss": 1.0},
    ],
)  # fmt: skip
def test_a_line_without_a_step_is_no_step(line: dict[str, Any]) -> None:
    record = RunRecord()
    record.feed([line])
    assert record.count == 0


def test_of_many_observed_ranges_the_magnitudes_are_drawn() -> None:
    record = RunRecord()
    ends: list[Any] = [[-3.0, 2.0], [0.0, 5.0], ["-inf", 1.0], [1.0, "nan"], None, "odd", [None, None]]
    for step, pair in enumerate(ends):
        record.feed([{"step": step, "observed": {f"block {i}": pair for i in range(30)}}])
    drawn = [key for key in record.series if key[0] == "observed"]
    assert len(drawn) == 24
    assert record.series[drawn[-1]].buckets == {
        0: [3.0, 3.0, 0, 0, 0], 1: [5.0, 5.0, 0, 0, 0], 2: [None, None, 0, 0, 1], 3: [None, None, 1, 0, 0],
    }  # fmt: skip


def test_vitals_keep_the_worst_of_a_stretch() -> None:
    record = RunRecord()
    for step in range(1000):
        peak: Any = "nan" if step == 500 else 7.0 if step == 123 else 1.0
        record.feed(
            [{"event": "vitals", "step": step, "modules": {"a": [peak, 0.5, 1.0], "b": [1.0, 1.0, "inf"]}}]
        )
    heat = record.heat.to_json()
    columns: Any = heat["columns"]
    cells, width = dict(columns), int(str(heat["width"]))
    assert cells[500 // width]["0"][0] == "nan"
    assert cells[123 // width]["0"][0] == 7.0
    assert cells[0]["1"][2] == "inf"
    assert len(cells) <= 192


def test_folders_that_hold_nothing_say_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "run.jsonl").write_text("")
    (tmp_path / "alien").mkdir()
    (tmp_path / "alien" / "run.jsonl").write_text("epoch 1 loss 2.0\nepoch 2 loss nan\n")
    (tmp_path / "file.txt").write_text("x")
    full_run(tmp_path / "runs" / "a", steps=30)
    broken = write_incident(tmp_path / "broken", "0001", {})
    (broken / "incident.json").write_text('{"schema": 1, "step": 4')
    for name, words in {
        "nowhere": "does not exist",
        "empty": "holds no run.jsonl and no incidents/",
        "fresh": "holds no step yet",
        "alien": "none of the 2 lines",
        "file.txt": "is a file",
        "runs": "holds 1 runs; name one of them",
        "broken": "its incidents cannot be read",
        "broken/incidents/0001": "is not whole",
    }.items():
        with pytest.raises(NothingToShow, match=words) as nothing:
            open_folder(tmp_path / name)
        assert "\n" not in str(nothing.value)


@pytest.mark.skipif(
    not hasattr(os, "seteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_what_may_not_be_read_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    write_lines(tmp_path / "run", [step_line(0)])
    (tmp_path / "run" / "run.jsonl").chmod(0o600)
    full_run(tmp_path / "closed", steps=3)
    (tmp_path / "closed").chmod(0o700)
    os.seteuid(65534)
    try:
        for name in ("run", "closed", "closed/incidents/0001"):
            with pytest.raises(NothingToShow, match="cannot be read: Permission denied"):
                open_folder(tmp_path / name)
            assert Tail(tmp_path / name).read() is None
        assert [path.name for path in runs_in(tmp_path)] == ["run"]
    finally:
        os.seteuid(0)


def test_a_broken_incident_does_not_hide_the_others(tmp_path: Path) -> None:
    write_incident(tmp_path, "0001", incident("a.py"))
    write_incident(tmp_path, "0002", {"schema": 1})
    write_incident(tmp_path, "0010", incident("a.py", step=9))
    (tmp_path / "incidents" / "notes.txt").write_text("mine")
    contents = open_folder(tmp_path)
    assert [(file.number, file.problem is None) for file in contents.incidents] == [
        ("0001", True), ("0002", False), ("0010", True),
    ]  # fmt: skip


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for i, name in enumerate(("b", "a", "c")):
        write_lines(tmp_path / name, [step_line(0)])
        for path in (tmp_path / name / "run.jsonl", tmp_path / name):
            os.utime(path, (1000 + i, 1000 + i))
    (tmp_path / "other").mkdir()
    assert [path.name for path in runs_in(tmp_path)] == ["c", "a", "b"]


def test_modules_seen_later_have_the_row_that_the_model_gives_them() -> None:
    heat = HeatMap()
    heat.add(0, {"a": [1.0, 1.0, 1.0], "c": [2.0, 1.0, 1.0]})
    heat.add(1, {"a": [1.0, 1.0, 1.0], "b": [3.0, 1.0, 1.0], "c": [2.0, 1.0, 1.0], "d": [4.0, 1.0, 1.0]})
    assert [name for name, _ in heat.last()] == ["a", "b", "c", "d"]
    told: dict[str, Any] = dict(heat.to_json())
    assert [told["modules"][index] for index in told["order"]] == ["a", "b", "c", "d"]
