"""Repair in every format, checked with the loader that defines the format."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from stayfinite.checkpoint import verify
from stayfinite.checkpoint.repair import RepairRefused, repair
from stayfinite.readers.checkpoint import locate

torch.set_num_threads(1)
State = dict[str, torch.Tensor]
NAN = float("nan")


def state(bad: bool) -> State:
    torch.manual_seed(1 if bad else 0)
    made = {"a": torch.randn(5, 6), "b": torch.randn(7).to(torch.bfloat16), "c": torch.randn(40, 3)}
    if bad:
        made["a"][2, 3] = NAN
        made["b"][0] = float("inf")
    return made


def _save_zip(made: State, path: Path) -> None:
    torch.save(made, path)


def _save_legacy(made: State, path: Path) -> None:
    torch.save(made, path, _use_new_zipfile_serialization=False)


def _save_strided(made: State, path: Path) -> None:
    torch.save({**made, "a": made["a"].t().contiguous().t()}, path)


def _save_folder(made: State, path: Path) -> None:
    path.mkdir()
    save_file(made, path / "model.safetensors")


def _save_distributed(made: State, path: Path) -> None:
    dcp.save(dict(made), checkpoint_id=path, no_dist=True)


def _load_distributed(path: Path) -> State:
    made = {name: torch.zeros_like(tensor) for name, tensor in state(False).items()}
    dcp.load(dict(made), checkpoint_id=path, no_dist=True)
    return made


FORMATS: dict[str, tuple[Callable[[State, Path], None], Callable[[Path], State]]] = {
    "zip.pt": (_save_zip, torch.load),
    "legacy.pt": (_save_legacy, torch.load),
    "strided.pt": (_save_strided, torch.load),
    "a.safetensors": (save_file, load_file),
    "folder": (_save_folder, lambda path: load_file(path / "model.safetensors")),
    "distributed": (_save_distributed, _load_distributed),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", FORMATS)
def test_poisoned_tensors_come_from_the_good_one(tmp_path: Path, name: str) -> None:
    save, load = FORMATS[name]
    bad, good, out = tmp_path / f"bad-{name}", tmp_path / f"good-{name}", tmp_path / f"out-{name}"
    save(state(True), bad)
    save(state(False), good)
    done = repair(locate([str(bad)])[0], locate([str(good)])[0], str(out), most=0.9)
    assert sorted(done.replaced) == ["a", "b"]
    mended = load(out)
    assert torch.equal(mended["a"], state(False)["a"])
    assert torch.equal(mended["b"], state(False)["b"])
    assert torch.equal(mended["c"], state(True)["c"])
    assert verify(out).healthy
    assert verify(bad).bad_tensors


def test_checksums_of_the_archive_are_right(tmp_path: Path) -> None:
    torch.save(state(True), tmp_path / "bad.pt")
    torch.save(state(False), tmp_path / "good.pt")
    repair(
        locate([str(tmp_path / "bad.pt")])[0],
        locate([str(tmp_path / "good.pt")])[0],
        str(tmp_path / "out.pt"),
        most=1,
    )
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert archive.testzip() is None


def test_arrays(tmp_path: Path) -> None:
    bad, good = np.arange(8.0), np.arange(8.0) * 2
    bad[3] = np.nan
    np.savez(tmp_path / "bad.npz", x=bad, y=good)
    np.savez(tmp_path / "good.npz", x=good, y=good)
    np.savez_compressed(tmp_path / "packed.npz", x=bad, y=good)
    donor = locate([str(tmp_path / "good.npz")])[0]
    repair(locate([str(tmp_path / "bad.npz")])[0], donor, str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as mended:
        assert np.array_equal(mended["x"], good)
    with pytest.raises(RepairRefused, match="compressed"):
        repair(locate([str(tmp_path / "packed.npz")])[0], donor, str(tmp_path / "other.npz"))
    assert not (tmp_path / "other.npz").exists()


def test_a_result_that_is_still_bad_gets_no_name(tmp_path: Path) -> None:
    """The scale of 0 is a plain number, which the repair does not touch."""
    scaler = {
        "scale": 0.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 0,
    }
    torch.save({"model": state(True), "scaler": scaler}, tmp_path / "bad.pt")
    torch.save({"model": state(False)}, tmp_path / "good.pt")
    with pytest.raises(RepairRefused, match="still be bad: scaler: the loss scale is 0"):
        repair(
            locate([str(tmp_path / "bad.pt")])[0],
            locate([str(tmp_path / "good.pt")])[0],
            str(tmp_path / "out.pt"),
            most=1,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pt", "good.pt"]
