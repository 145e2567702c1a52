"""Damage that other readers refuse is never called healthy: compared with torch, numpy and safetensors themselves."""

from __future__ import annotations

import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stayfinite.checkpoint import verify

STATE = {
    "model": {
        "a.weight": torch.arange(32.0).view(8, 4),
        "bn.running_var": torch.ones(4),
        "t": torch.ones(6, 5).t(),
    },
    "step": 7,
}
FLAT = {"a_weight": torch.arange(32.0).view(8, 4), "a_bias": torch.ones(8), "h": torch.ones(3, 3).half()}
ARRAYS = {name: tensor.numpy() for name, tensor in FLAT.items()}

WRITE: dict[str, Callable[[Path], object]] = {
    "zip.pt": lambda path: torch.save(STATE, path),
    "legacy.pt": lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False),
    "stored.npz": lambda path: np.savez(path, **ARRAYS),
    "packed.npz": lambda path: np.savez_compressed(path, **ARRAYS),
    "x.npy": lambda path: np.save(path, ARRAYS["a_weight"]),
    "x.safetensors": lambda path: save_file(FLAT, path),
}


def load(path: Path) -> None:
    """As its own library does; raises where that refuses."""
    if path.suffix == ".pt":
        torch.load(path, weights_only=True)
    elif path.suffix == ".npz":
        with (
            path.open("rb") as handle,
            np.load(handle) as archive,
        ):  # by name, numpy leaves it open when it refuses
            _ = [archive[name] for name in archive.files]
    elif path.suffix == ".npy":
        np.load(path)
    else:
        load_file(path)


def damaged(data: bytes, kind: int, rng: random.Random) -> bytes:
    changed = bytearray(data)
    at = rng.randrange(len(changed))
    if kind == 0:
        changed[at] = rng.randrange(256)
    elif kind == 1:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del changed[at or 1 :]
    else:
        del changed[at : at + rng.randrange(1, 9)]
    return bytes(changed)


@pytest.mark.parametrize("name", WRITE)
def test_what_a_library_refuses_is_not_healthy(name: str, tmp_path: Path) -> None:
    """A hundred random injuries: whatever the library of the format refuses, the scan calls damaged."""
    path = tmp_path / name
    WRITE[name](path)
    assert verify(path).healthy
    data, rng = path.read_bytes(), random.Random(name)
    called_healthy: list[str] = []
    for trial in range(100):
        path.write_bytes(damaged(data, trial % 4, rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(path)
        except Exception as refusal:  # noqa: BLE001 - whatever it is, the library did not load the file
            if verify(path).healthy:
                called_healthy.append(f"{trial}: {type(refusal).__name__} {str(refusal)[:100]}")
    # A pickle has no checksum: a changed byte can give another well-formed value of the wrong type.
    assert len(called_healthy) <= (1 if name == "legacy.pt" else 0), called_healthy


def test_a_wrong_checksum_in_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **ARRAYS)
    data = bytearray(path.read_bytes())
    at = bytes(data).index(ARRAYS["a_weight"].tobytes()[:16])
    data[at + 9] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(zipfile.BadZipFile):
        load(path)
    verdict = verify(path)
    assert not verdict.healthy and "checksum" in verdict.findings[0].message


def test_an_array_of_objects_was_not_looked_at(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    verdict = verify(tmp_path / "a.npy")
    assert verdict.unreadable is not None and "numpy refuses it" in verdict.unreadable


def test_a_torch_file_written_without_checksums_is_healthy(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert verify(path).healthy


class Crooked:
    """Pickles as a call of torch's own function with the arguments given."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.args


def with_tensor(path: Path, start: Any, shape: Any, stride: Any, legacy: bool) -> Path:
    """A file whose tensor has the given offset, shape and strides over a storage of 8 numbers."""
    storage = torch.arange(8.0).untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    state = {"w": Crooked(typed, start, shape, stride, False, {}), "good": torch.ones(3)}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("start", "shape", "stride"),
    [
        (0, (4,), (-1,)), (-2, (4,), (1,)), (0, (-4,), (1,)), (6, (4,), (1,)), (0, (4, 4), (4, 1)),
        (0, (4,), (1 << 61,)),
        (1 << 62, (4,), (1,)), (0, (2, 2), (1,)), (0, (1 << 63,), (1,)), (0, ("4",), (1,)), (0.5, (4,), (1,)),
        (0, None, (1,)),
    ],
)  # fmt: skip
def test_impossible_strides_and_offsets_are_damage(
    start: Any, shape: Any, stride: Any, legacy: bool, tmp_path: Path
) -> None:
    path = with_tensor(tmp_path / "a.pt", start, shape, stride, legacy)
    with pytest.raises((RuntimeError, TypeError, pickle.UnpicklingError, ValueError, OverflowError)):
        torch.load(path, weights_only=True)
    verdict = verify(path)
    assert not verdict.healthy
    assert any("w" in finding.message for finding in verdict.findings)


@pytest.mark.parametrize("legacy", [False, True])
def test_unusual_but_possible_tensors_are_healthy(legacy: bool, tmp_path: Path) -> None:
    for start, shape, stride in (
        (3, (2,), (2,)),
        (0, (5, 4), (0, 1)),
        (8, (0,), (1,)),
        (0, (3, 3), (2, 1)),
        (7, (), ()),
    ):
        path = with_tensor(tmp_path / "a.pt", start, shape, stride, legacy)
        torch.load(path, weights_only=True)
        assert verify(path).healthy, (start, shape, stride)


def test_a_legacy_storage_of_the_wrong_length(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(8.0)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    at = data.rindex((8).to_bytes(8, "little") + torch.arange(8.0).numpy().tobytes())
    path.write_bytes(data[:at] + (6).to_bytes(8, "little") + data[at + 8 : at + 8 + 24])
    with pytest.raises(RuntimeError, match="wrong byte size"):
        torch.load(path)
    verdict = verify(path)
    assert not verdict.healthy and "should have 8 elements and has 6" in verdict.findings[0].message


def test_a_legacy_file_of_another_protocol(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(8.0)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(pickle.dumps(1001, 2), pickle.dumps(1002, 2), 1))
    with pytest.raises(RuntimeError, match="protocol"):
        torch.load(path)
    assert not verify(path).healthy


@pytest.mark.parametrize("legacy", [False, True])
def test_many_small_tensors_are_all_looked_at(
    legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a pickle may have instructions for (4 million; here 50,000): tensors that are there pay for theirs."""
    monkeypatch.setattr("stayfinite.readers.checkpoint.pickle_machine._MOST_OPERATIONS", 50_000)
    state = {f"layers.{number}.w": torch.full((3,), float(number)) for number in range(3000)}
    state["layers.777.w"][1] = float("nan")
    state["layers.2999.w"][2] = float("inf")
    path = tmp_path / "a.pt"
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    verdict = verify(path, jobs=2)
    assert [tensor.name for tensor in verdict.bad_tensors] == ["layers.777.w", "layers.2999.w"]
    found = verdict.bad_tensors[0].statistics
    assert found is not None and found.nan == 1 and found.first_bad == (1,)
    middle = verdict.checkpoint.tensors[500].statistics
    assert middle is not None and middle.minimum == middle.maximum == 500.0


def test_instructions_without_tensors_are_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stayfinite.readers.checkpoint.pickle_machine._MOST_OPERATIONS", 50_000)
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x02]" + b"]a" * 30_000 + b".")
    verdict = verify(path)
    assert verdict.unreadable is not None and "instructions" in verdict.unreadable


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.int8]
)
def test_tiny_tensors_of_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([1, 0, 1, 1]).to(dtype)
    path = tmp_path / "a.pt"
    torch.save({"w": values, "one": values[1], "none": values[:0]}, path)
    tensors = {tensor.name: tensor.statistics for tensor in verify(path).checkpoint.tensors}
    whole, one = tensors["w"], tensors["one"]
    assert whole is not None and (whole.minimum, whole.maximum) == (0, 1)
    assert one is not None and (one.minimum, one.maximum) == (0, 0)
