"""Every log format gives the same series, steps and first failure, however the bytes arrive."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from logs.written import FAILS, RECORDS, STEPS, WRITERS, json_lines
from stayfinite.findings.subjects.log import Role
from stayfinite.logs import read_log
from stayfinite.logs.digest import Digest
from stayfinite.readers.log import make_reader, role_of


@pytest.mark.parametrize("form", WRITERS)
def test_the_same_run_in_every_format(form: str, tmp_path: Path) -> None:
    name, write = WRITERS[form]
    log = read_log(str(write(tmp_path / name)))
    assert log.format == form.partition(",")[0]
    loss, norm, rate = log.main(Role.LOSS), log.main(Role.NORM), log.main(Role.RATE)
    assert loss is not None and norm is not None and rate is not None
    assert loss.count == norm.count == rate.count == STEPS
    assert loss.nan == norm.inf == STEPS - FAILS
    assert loss.first_bad is not None and loss.first_bad.step == FAILS
    assert loss.last_finite is not None and loss.last_finite.value == pytest.approx(
        RECORDS[FAILS - 1]["loss"], rel=0.01
    )
    assert rate.minimum == rate.maximum == pytest.approx(1e-3)
    assert log.trouble is not None and log.trouble.role is Role.LOSS
    assert log.trouble.around[rate.name] == pytest.approx(1e-3)
    assert [point.step for point in log.trouble.before[norm.name]][-3:] == [FAILS - 3, FAILS - 2, FAILS - 1]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_may_arrive_in_pieces_of_any_size(form: str, size: int, tmp_path: Path) -> None:
    name, write = WRITERS[form]
    path = write(tmp_path / name)
    data = path.read_bytes()
    whole = read_log(str(path))
    _, reader = make_reader(data, str(path))
    digest = Digest(str(path))
    for at in range(0, len(data), size):
        for block in reader.feed(data[at : at + size]):
            digest.update(block)
    for block in reader.feed(b"", last=True):
        digest.update(block)
    log = digest.log
    assert log.records == whole.records
    for key, series in whole.series.items():
        other = log.series[key]
        for one in ("count", "nan", "inf", "repeated", "minimum", "maximum"):
            assert getattr(other, one) == getattr(series, one), one
        for one, two in ((other.first_bad, series.first_bad), (other.last, series.last)):
            assert (one and (one.step, one.line, one.order)) == (two and (two.step, two.line, two.order))


def test_lines_are_named(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl")
    text = path.read_text()
    path.write_text('{"event": "start"}\n\nnot json\n' + text)
    log = read_log(str(path))
    assert log.trouble is not None and log.trouble.point.line == 3 + FAILS + 1
    assert log.unread == 1


def test_records_of_several_shapes_are_all_read(tmp_path: Path) -> None:
    """The fast way fits one shape; lines of others, nested ones and a changed shape go through the parser."""
    lines = []
    for step in range(3000):
        if step % 10 == 0:
            lines.append({"eval": {"loss": 0.5, "acc": [0.1, 0.2]}, "step": step})
        elif step < 1500:
            lines.append({"step": step, "train": {"loss": 1.0 + step}, "lr": [1e-3, 1e-4]})
        else:
            lines.append({"lr": [1e-3, 1e-4], "step": step, "train": {"loss": 1.0 + step}, "note": "x,}{"})
    log = read_log(str(json_lines(tmp_path / "a.jsonl", lines)))
    assert log.records == 3000
    assert log.series["train.loss"].count == 2700 and log.series["train.loss"].maximum == 3000
    assert log.series["eval.loss"].count == 300 and log.series["lr.1"].maximum == 1e-4
    assert log.last_step == 2999


def test_numbers_with_a_name_beside_them(tmp_path: Path) -> None:
    lines = [{"tag": tag, "value": 1.0, "step": s} for s in range(50) for tag in ("train/loss", "train/lr")]
    log = read_log(str(json_lines(tmp_path / "a.jsonl", lines)))
    assert log.series["train/loss"].count == 50 and log.series["train/lr"].role is Role.RATE


def test_a_metric_that_is_not_finite_is_seen(tmp_path: Path) -> None:
    """Of metrics only what is not finite is kept, wherever in the line it stands and however it is written."""
    lines = [json.dumps({"step": s, "loss": 1.0, "accuracy": 0.5, "speed": 3.0}) for s in range(100)]
    for line, word in ((40, "NaN"), (50, '"nan"'), (60, "-Infinity"), (70, '"-inf"')):
        lines[line] = lines[line].replace("0.5", word)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    series = read_log(str(path)).series["accuracy"]
    assert (series.nan, series.inf) == (2, 2)
    assert series.first_bad is not None and series.first_bad.line == 41


def test_gzip_utf16_and_windows_lines(tmp_path: Path) -> None:
    plain = json_lines(tmp_path / "a.jsonl").read_text()
    packed, wide, windows = tmp_path / "b.jsonl.gz", tmp_path / "c.log", tmp_path / "d.jsonl"
    packed.write_bytes(gzip.compress(plain.encode()))
    wide.write_text("\n".join(f"step {r['step']} loss {r['loss']}" for r in RECORDS), encoding="utf-16")
    windows.write_bytes(b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode())
    for path in (packed, wide, windows):
        log = read_log(str(path))
        assert log.series["loss"].nan == STEPS - FAILS, path
        assert log.trouble is not None and log.trouble.point.step == FAILS


def test_other_json_documents(tmp_path: Path) -> None:
    columns = tmp_path / "history.json"
    columns.write_text(json.dumps({"loss": [2.0, 1.0, math.nan], "val_loss": [2.1, 1.5, 1.2]}))
    assert read_log(str(columns)).series["loss"].nan == 1
    rows = tmp_path / "log.json"
    rows.write_text(json.dumps([{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.inf}]))
    assert read_log(str(rows)).series["loss"].inf == 1


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("loss", Role.LOSS), ("train/loss", Role.LOSS), ("train_loss_step", Role.LOSS), ("total_loss", Role.LOSS),
        ("loss/kd", Role.COMPONENT), ("components.ce", Role.COMPONENT), ("kl_loss", Role.COMPONENT),
        ("eval_loss", Role.EVALUATION), ("val/loss", Role.EVALUATION), ("learning_rate", Role.RATE),
        ("lr-AdamW/pg1", Role.RATE), ("lr.0", Role.RATE), ("grad_norm", Role.NORM), ("gnorm", Role.NORM),
        ("train/grad_norm", Role.NORM), ("loss_scale", Role.SCALE), ("update_ratio", Role.UPDATE),
        ("skipped_steps", Role.SKIPPED), ("success_rate", Role.SUCCESS), ("accuracy", Role.METRIC),
        ("tokens", Role.METRIC), ("loss_weight", Role.METRIC), ("glossary", Role.METRIC), ("blr_x", Role.METRIC),
    ],
)  # fmt: skip
def test_what_names_mean(name: str, role: Role) -> None:
    assert role_of(name) is role
