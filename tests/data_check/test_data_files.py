"""Data files of every format: planted faults are found with their samples, healthy twins are silent."""

from __future__ import annotations

import csv
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stayfinite.data import Expectation, examine_data
from stayfinite.findings import Finding, Severity
from stayfinite.findings.subjects.data_set import DataArray, Use

ROWS, WIDTH = 5000, 32
NAN = float("nan")


def embeddings(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    return (made / made.norm(dim=1, keepdim=True)).to(dtype)


def broken(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = embeddings(dtype)
    made[17, 3], made[4000, 5] = NAN, float("inf")
    made[40] = 0
    made[41] = 0.25
    made[4999] = made[3]
    return made


def save_pt(path: Path, values: torch.Tensor) -> Path:
    torch.save({"embeddings": values, "ids": [f"img{i}.png" for i in range(len(values))]}, path)
    return path


def save_legacy(path: Path, values: torch.Tensor) -> Path:
    torch.save({"embeddings": values}, path, _use_new_zipfile_serialization=False)
    return path


def save_npy(path: Path, values: torch.Tensor) -> Path:
    np.save(path, values.numpy())
    return path


def save_npz(path: Path, values: torch.Tensor) -> Path:
    np.savez_compressed(path, embeddings=values.numpy())
    return path


def save_fortran(path: Path, values: torch.Tensor) -> Path:
    np.save(path, np.asfortranarray(values.numpy()))
    return path


def save_safe(path: Path, values: torch.Tensor) -> Path:
    save_file({"embeddings": values}, path)
    return path


def save_csv(path: Path, values: torch.Tensor) -> Path:
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["path", *(f"f{i}" for i in range(values.shape[1]))])
        writer.writerows([f"img{i}.png", *row] for i, row in enumerate(values.tolist()))
    return path


def save_parquet(path: Path, values: torch.Tensor) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(values.flatten().numpy()), values.shape[1])
    parquet.write_table(arrow.table({"embedding": rows}), path)
    return path


SAVERS: dict[str, Callable[[Path, torch.Tensor], Path]] = {
    "cache.pt": save_pt, "legacy_features.pt": save_legacy, "embeddings.npy": save_npy, "cache.npz": save_npz,
    "embeddings_f.npy": save_fortran, "cache.safetensors": save_safe, "embeddings.csv": save_csv,
    "cache.parquet": save_parquet,
}  # fmt: skip


def by_code(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings}


@pytest.mark.parametrize("name", SAVERS)
@pytest.mark.parametrize("jobs", [1, 3])
def test_planted_faults_in_every_format(name: str, jobs: int, tmp_path: Path) -> None:
    path = SAVERS[name](tmp_path / name, broken())
    verdict = examine_data(str(path), jobs=jobs)
    found = by_code(verdict.findings)
    assert found["DAT020"].evidence["samples"] == 2
    assert (found["DAT020"].evidence["nan"], found["DAT020"].evidence["inf"]) == (1, 1)
    assert found["DAT023"].evidence["samples"] == 1 and found["DAT025"].evidence["samples"] == 1
    assert found["DAT026"].evidence["samples"] == 1
    shown = found["DAT020"].evidence["first_samples"]
    ids = name.endswith((".csv", "cache.pt"))
    assert shown == (["img17.png", "img4000.png"] if ids else ["17", "4000"])
    if name != "embeddings.csv":
        assert verdict.data.recompute() == "rows" and "DAT032" in found


@pytest.mark.parametrize("name", SAVERS)
def test_a_healthy_cache_is_silent(name: str, tmp_path: Path) -> None:
    path = SAVERS[name](tmp_path / name, embeddings())
    verdict = examine_data(str(path), jobs=2)
    assert verdict.findings == [] and verdict.data.arrays[0].rows == ROWS
    if name != "embeddings.csv":
        assert verdict.data.recompute() == "nothing"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    found = by_code(examine_data(str(save_pt(tmp_path / "cache.pt", broken(dtype))), jobs=2).findings)
    assert {"DAT020", "DAT023", "DAT025", "DAT026"} <= set(found)
    assert examine_data(str(save_pt(tmp_path / "b.pt", embeddings(dtype)))).findings == []


def test_large_arrays_are_split_among_threads(tmp_path: Path) -> None:
    values = torch.randn(120_000, 320)
    values[100_001, 7] = NAN
    values[119_999] = values[5]
    path = save_npy(tmp_path / "embeddings.npy", values)
    for jobs in (1, 4):
        found = by_code(examine_data(str(path), jobs=jobs).findings)
        assert found["DAT020"].evidence["first_samples"] == ["100001"]
        assert found["DAT026"].evidence["pairs"] == [["119999", "5"]]


def test_expectations(tmp_path: Path) -> None:
    values = embeddings()
    values[9] *= 3
    path = str(save_pt(tmp_path / "cache.pt", values))
    found = by_code(examine_data(path, expected=Expectation(norm=1.0)).findings)
    assert found["DAT021"].evidence["first_samples"] == ["img9.png"]
    found = by_code(examine_data(path, expected=Expectation(-0.5, 0.5)).findings)
    assert found["DAT021"].severity is Severity.ERROR
    values[77] *= 1e6
    far = by_code(examine_data(str(save_pt(tmp_path / "b.pt", values))).findings)
    assert far["DAT021"].evidence["first_samples"] == ["img77.png"]


def test_labels(tmp_path: Path) -> None:
    labels = torch.randint(0, 10, (200,))
    path = tmp_path / "a.pt"
    torch.save({"x": torch.randn(200, 4), "labels": labels}, path)
    assert examine_data(str(path), expected=Expectation(classes=10)).findings == []
    found = by_code(examine_data(str(path), expected=Expectation(classes=5)).findings)
    assert found["DAT028"].evidence["samples"] == int((labels >= 5).sum())
    labels[3] = -7
    torch.save({"labels": labels}, path)
    assert by_code(examine_data(str(path)).findings)["DAT028"].evidence["first_samples"] == ["3"]
    tokens = torch.randint(0, 50, (64, 16))
    tokens[:, :4] = -100
    torch.save({"labels": tokens}, path)
    assert examine_data(str(path)).findings == [], "ignored labels are no fault"
    tokens[5] = -100
    torch.save({"labels": tokens}, path)
    assert by_code(examine_data(str(path)).findings)["DAT027"].evidence["first_samples"] == ["5"]


def test_boxes(tmp_path: Path) -> None:
    corner = torch.rand(100, 2) * 50
    boxes = torch.cat([corner, corner + 1 + torch.rand(100, 2) * 20], dim=1)
    path = tmp_path / "a.pt"
    torch.save({"boxes": boxes}, path)
    assert examine_data(str(path)).findings == []
    sizes = torch.cat([corner + 100, 1 + torch.rand(100, 2) * 20], dim=1)
    torch.save({"bboxes": sizes}, path)
    assert examine_data(str(path)).findings == [], "x y w h is a layout too"
    boxes[7, 2] = boxes[7, 0]
    torch.save({"boxes": boxes}, path)
    assert by_code(examine_data(str(path)).findings)["DAT029"].evidence["first_samples"] == ["7"]
    padded = torch.zeros(20, 5, 4)
    padded[:, :2] = boxes[10:50].reshape(20, 2, 4)
    torch.save({"boxes": padded}, path)
    assert examine_data(str(path)).findings == [], "zeros pad"


def test_alignments(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    targets = np.array([[1, 2, 3, 4, 5], [1, 2, 2, 3, 4], [7, 7, 7, 0, 0]])
    lengths = {"target_lengths": np.array([5, 5, 3]), "targets": targets}
    np.savez(path, input_lengths=np.array([5, 6, 5]), **lengths)
    assert examine_data(str(path)).findings == []
    np.savez(path, input_lengths=np.array([5, 5, 5]), **lengths)
    found = by_code(examine_data(str(path)).findings)["DAT030"]
    assert found.evidence["first_samples"] == ["1"] and (
        found.evidence["frames"],
        found.evidence["needed"],
    ) == (5, 6)


def test_raw_bytes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (100, 3, 8, 8))
    np.save(tmp_path / "a.npy", pixels.astype(np.float32))
    assert by_code(examine_data(str(tmp_path / "a.npy")).findings)["DAT022"].severity is Severity.WARNING
    np.save(tmp_path / "b.npy", pixels.astype(np.uint8))
    assert by_code(examine_data(str(tmp_path / "b.npy")).findings)["DAT022"].severity is Severity.INFO
    np.save(tmp_path / "c.npy", (pixels / 255).astype(np.float32))
    assert examine_data(str(tmp_path / "c.npy")).findings == []


def test_a_table(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [[f"r{i}", rng.gauss(0, 1), rng.gauss(5, 2), "blue", i % 3] for i in range(300)]
    path = tmp_path / "t.csv"

    def write(table: list[list[object]]) -> str:
        with path.open("w", newline="") as handle:
            csv.writer(handle).writerows([["id", "a", "b", "colour", "target"], *table])
        return str(path)

    healthy = examine_data(write(rows), expected=Expectation(classes=3))
    assert healthy.findings == [] and {array.use for array in healthy.data.arrays} == {Use.INPUT, Use.LABEL}
    rows[7][1], rows[8][2], rows[9][4] = "", "inf", 5
    for row in rows:
        row.append(7)
    text = path.with_name("u.csv")
    text.write_text(
        "id,a,b,colour,target,same\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\nbent,1\n"
    )
    found = by_code(examine_data(str(text), expected=Expectation(classes=3)).findings)
    assert found["DAT020"].evidence["first_samples"] == ["r7", "r8"]
    assert found["DAT024"].evidence["columns"] == ["same"]
    assert found["DAT028"].evidence["first_samples"] == ["r9"]
    assert "do not have 6 cells" in found["DAT031"].message


def test_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for index in range(5):
        image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{index}.png")
    assert examine_data(str(tmp_path), images_in=sorted(map(str, tmp_path.glob("*.png")))).findings == []
    image.new("RGB", (8, 8), (255, 255, 255)).save(tmp_path / "white.png")
    image.new("L", (8, 8), 0).save(tmp_path / "black.jpg")
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    (tmp_path / "empty.jpg").write_bytes(b"")
    paths = sorted(str(path) for path in tmp_path.iterdir())
    found = examine_data(str(tmp_path), images_in=paths, jobs=2).findings
    assert sorted(by_code(found)["DAT023"].evidence["first_samples"]) == ["black.jpg", "white.png"]
    damaged = [Path(str(finding.file)).name for finding in found if finding.code == "DAT031"]
    assert sorted(damaged) == ["cut.png", "empty.jpg"], "each of them once, though images are read twice"


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, embeddings=embeddings().numpy())
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        crc = archive.infolist()[0].CRC.to_bytes(4, "little")
    data = bytearray(bytes(data).replace(crc, b"\x01\x02\x03\x04"))
    path.write_bytes(bytes(data))
    verdict = examine_data(str(path))
    assert "DAT031" in by_code(verdict.findings) and not verdict.healthy


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.npy", b""),
        ("noise.npy", bytes(range(256))),
        ("noise.pt", b"PK\x03\x04" + b"\x00" * 100),
        ("words.csv", b"a,b\nred,blue\n"),
        ("noise.parquet", b"PAR1" + b"\xff" * 100),
        ("binary.csv", bytes(range(256)) * 4),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    verdict = examine_data(str(path))
    assert not verdict.healthy and verdict.unreadable is not None and str(path) in verdict.unreadable


@pytest.mark.parametrize("name", SAVERS)
def test_flipped_bytes_never_raise(name: str, tmp_path: Path) -> None:
    small = broken()[:64]
    path = SAVERS[name](tmp_path / name, small)
    data = path.read_bytes()
    rng = random.Random(name)
    for trial in range(20):
        changed = bytearray(data[: rng.randrange(len(data))] if trial % 3 == 0 else data)
        for _ in range(rng.randrange(1, 12)):
            if changed:
                changed[rng.randrange(min(len(changed), 400 if trial % 2 else len(changed)))] = rng.randrange(
                    256
                )
        path.write_bytes(bytes(changed))
        examine_data(str(path))


def test_an_object_array_and_a_pickle_execute_nothing(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": Bomb(), "y": [1]}, protocol=4))
    np.save(tmp_path / "b.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    for name in ("a.pkl", "b.npy"):
        examine_data(str(tmp_path / name))
    assert not (tmp_path / "touched").exists()


def test_repeats_among_very_many_rows(tmp_path: Path) -> None:
    values = torch.randn(450_000, 4)
    values[449_000], values[17] = values[100_000], values[16]
    found = by_code(examine_data(str(save_npy(tmp_path / "embeddings.npy", values)), jobs=2).findings)
    assert found["DAT026"].evidence["pairs"] == [["17", "16"], ["449000", "100000"]]


def _found(path: Path, rows: torch.Tensor) -> DataArray:
    np.save(path, rows.numpy())
    return examine_data(str(path)).data.arrays[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_duplicates_are_found_where_the_middles_of_rows_do_not_tell_them_apart(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    rows = torch.randn(3000, 768).to(dtype)
    rows[2000], rows[2001] = rows[7], rows[7]
    rows[2001, 0] += 1  # between two equal rows one that differs outside the middle
    rows[2002] = rows[7]
    found = _found(tmp_path / "few.npy", rows)
    assert (found.duplicates.first, found.duplicate_of) == ([2000, 2002], [7, 2000])
    rows[:, 300:500] = 0  # no two of them differ there
    found = _found(tmp_path / "all.npy", rows)
    assert (found.duplicates.first, found.duplicate_of) == ([2000, 2002], [7, 2000])
    rows = torch.randn(60_000, 264).to(dtype)
    rows[5000:29_000, 100:200], rows[35_000:, 100:200] = 1, 2  # not to be seen in the first rows
    rows[59_000] = rows[40_000]
    found = _found(tmp_path / "late.npy", rows)
    assert (found.duplicates.first, found.duplicate_of) == ([59_000], [40_000])


@pytest.mark.parametrize("width", [2, 3, 5, 768])
def test_zeros_of_both_signs_are_a_zero_row_and_narrow_rows_count(width: int, tmp_path: Path) -> None:
    rows = torch.randn(200, width).half()
    rows[3], rows[150] = 0, 0.5
    rows[3, ::2] *= -1
    found = _found(tmp_path / "x.npy", rows)
    assert (found.zero.first, found.constant.first) == ([3], [150])


def test_an_array_in_column_order_is_read_twice_at_most(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((4000, 100)).astype("float32")
    rows[2000:] = rows[:2000]
    np.save(tmp_path / "x.npy", np.asfortranarray(rows))
    found = examine_data(str(tmp_path / "x.npy"), jobs=2).data.arrays[0]
    assert found.duplicates.count == 2000 and found.duplicate_of[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.uint8])
@pytest.mark.parametrize("constant", [3, 900])
def test_constant_rows_are_found_by_one_word_of_each(
    dtype: torch.dtype, constant: int, tmp_path: Path
) -> None:
    torch.manual_seed(constant)
    rows = (torch.rand(4000, 640) * 200 + 1).to(dtype)
    chosen = sorted(torch.randperm(4000)[: 2 * constant].tolist())
    zero, same = chosen[::2], chosen[1::2]
    rows[same] = torch.arange(1, len(same) + 1).remainder(99).add(1)[:, None].to(dtype)
    rows[zero] = 0
    if dtype.is_floating_point:
        rows[zero[0], ::3] = -0.0
        rows[1:40:13, 310:330] = torch.tensor([5.0, -5.0]).repeat(10).to(dtype)  # alike but for the sign
    expected = sorted(set(same) - {1, 14, 27}), sorted(set(zero) - {1, 14, 27})
    if dtype is torch.uint8:
        expected = same, zero
    np.save(tmp_path / "embeddings.npy", rows.numpy())
    for jobs in (1, 2):
        found = examine_data(str(tmp_path / "embeddings.npy"), jobs=jobs).data.arrays[0]
        assert (found.constant.count, found.zero.count) == (len(expected[0]), len(expected[1]))
        assert (found.constant.first, found.zero.first) == (
            expected[0][: found.constant.MOST],
            expected[1][: found.zero.MOST],
        )


def test_a_table_that_is_one_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    verdict = examine_data(str(path))
    assert verdict.unreadable is not None and "longer than 8 MB" in verdict.unreadable
    text = "a,b\n1,2\n" * 300 + "1," + "2" * (9 << 20) + "\n3,4\n"
    path.write_text(text)
    assert not examine_data(str(path)).healthy


def test_the_only_array_of_a_file_is_known_by_the_name_of_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([0, 3, 12, 4]))
    found = by_code(examine_data(str(tmp_path / "labels.npy"), expected=Expectation(classes=10)).findings)
    assert found["DAT028"].evidence["first_samples"] == ["2"]
    np.save(tmp_path / "y_train.npy", np.array([-1.5, 0.3, 2.0]))  # targets of a regression
    assert not examine_data(str(tmp_path / "y_train.npy")).findings


def test_a_table_in_units_of_its_own_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("area,price\n" + "".join(f"{50 + i}.5,{200000 + 1000 * i}\n" for i in range(40)))
    found = by_code(examine_data(str(path)).findings)
    assert found["DAT021"].severity is Severity.INFO


def test_parquet_with_lists_of_any_length(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tokens = [[5, 6, 7, 8][: index % 5] for index in range(40)]
    sounds = [[0.5] * (index + 1) for index in range(40)]
    vectors = [[float(index), 2.0, 1.0] for index in range(40)]
    path = tmp_path / "train.parquet"
    columns = {"tokens": tokens, "sound": sounds, "embedding": vectors}
    parquet.write_table(arrow.table(columns), path)
    verdict = examine_data(str(path))
    assert not verdict.findings, verdict.findings  # texts and sounds differ in length
    assert {array.name: array.shape for array in verdict.data.arrays} == {
        "tokens": (80,),
        "sound": (820,),
        "embedding": (40, 3),
    }
    parquet.write_table(
        arrow.table(
            {**columns, "sound": [*sounds[:7], [1.0, NAN], *sounds[8:]], "embedding": [*vectors[:39], None]}
        ),
        path,
    )
    found = [finding for finding in examine_data(str(path)).findings if finding.code == "DAT020"]
    assert {finding.evidence["array"] for finding in found} == {"sound", "embedding"}
    (lost,) = [finding for finding in found if finding.evidence["array"] == "embedding"]
    assert lost.evidence["first_samples"] == ["39"]


def test_arrays_without_values_are_named_as_such(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 10), "float32"))
    said = examine_data(str(tmp_path / "empty.npy")).unreadable
    assert said is not None and said.endswith("its arrays hold no values: array is 0 x 10")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    said = examine_data(str(tmp_path / "words.npy")).unreadable
    assert said is not None and said.endswith("there is no array of numbers in this file")


def test_a_single_number_is_one_value(tmp_path: Path) -> None:
    np.save(tmp_path / "scalar.npy", np.float32(3))
    (array,) = examine_data(str(tmp_path / "scalar.npy")).data.arrays
    assert array.shape == (1,) and array.minimum == array.maximum == 3.0


def test_one_box_without_area_is_one_sample(tmp_path: Path) -> None:
    torch.save({"boxes": torch.tensor([[0.0, 0, 5, 5]] * 9 + [[3.0, 3, 3, 9]])}, tmp_path / "d.pt")
    (finding,) = examine_data(str(tmp_path / "d.pt")).findings
    assert finding.code == "DAT029" and "without area in 1 sample (" in finding.message
