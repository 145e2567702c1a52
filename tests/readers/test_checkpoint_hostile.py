"""Damaged and malicious files: an answer for each, no crash, no hang, no large allocation, nothing executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import preloaded
from stayfinite.checkpoint import verify

torch.set_num_threads(1)

# Each file gets ten seconds and the whole process one gigabyte more than it has after importing torch.
_EXAMINE_ALL = """
import json, resource, signal, sys
import torch
torch.set_num_threads(1)
from stayfinite.checkpoint import verify
verify({"warm": torch.ones(2)})

def too_slow(number, frame):
    raise TimeoutError("more than ten seconds")

signal.signal(signal.SIGALRM, too_slow)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), size + (1 << 30)))
results = {}
for path in json.load(open(sys.argv[1])):
    signal.alarm(10)
    try:
        verdict = verify(path)
        results[path] = ["unreadable" if verdict.unreadable else "read", [f.code for f in verdict.findings]]
    except BaseException as error:
        results[path] = ["crash", [type(error).__name__, str(error)[:300]]]
    signal.alarm(0)
json.dump(results, open(sys.argv[2], "w"))
"""


def examine(paths: list[Path], folder: Path) -> dict[str, tuple[str, list[str]]]:
    (folder / "list.json").write_text(json.dumps([str(path) for path in paths]))
    command = [sys.executable, "-c", _EXAMINE_ALL, str(folder / "list.json"), str(folder / "out.json")]
    done = preloaded.run(command, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, tuple[str, list[str]]] = json.loads((folder / "out.json").read_text())
    return results


def healthy_files(folder: Path) -> list[Path]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), folder / "plain.safetensors")
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(folder / "arrays.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    with (folder / "arrays.pkl").open("wb") as handle:
        pickle.dump(arrays, handle)
    return sorted(path for path in folder.iterdir() if path.is_file())


def mutations(files: list[Path], folder: Path, count: int) -> Iterator[Path]:
    """Bit flips (anywhere, or in the first and last bytes), truncations, insertions, exchanged blocks."""
    dice = random.Random(1)
    for number in range(count):
        source = files[number % len(files)]
        data = bytearray(source.read_bytes())
        how = dice.choice(["flip", "flip-head", "flip-tail", "cut", "insert", "exchange", "fill"])
        edges = {
            "flip-head": range(min(600, len(data))),
            "flip-tail": range(max(0, len(data) - 600), len(data)),
        }
        if how.startswith("flip"):
            for _ in range(dice.choice([1, 3, 30])):
                data[dice.choice(edges.get(how, range(len(data))))] ^= 1 << dice.randrange(8)
        elif how == "cut":
            del data[dice.randrange(len(data)) :]
        elif how == "insert":
            place = dice.randrange(len(data))
            data[place:place] = dice.randbytes(dice.choice([1, 8, 100]))
        elif how == "exchange":
            a, b = sorted(dice.sample(range(len(data) - 64), 2))
            data[a : a + 64], data[b : b + 64] = data[b : b + 64], data[a : a + 64]
        else:
            place = dice.randrange(len(data) - 8)
            data[place : place + 8] = b"\xff" * 8
        path = folder / f"{number:03d}-{how}-{source.name}"
        path.write_bytes(data)
        yield path


class Payload:
    """Pickles as a call of any function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def with_pickle(path: Path, data: bytes) -> None:
    """A torch zip whose data.pkl is this."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")


def hostile_files(folder: Path, canary: Path) -> list[Path]:
    command = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w').close()"
    payloads: list[Any] = [
        Payload(os.system, command),
        {"model": {"w": Payload(subprocess.call, ["touch", str(canary)])}},
        [Payload(eval, f"__import__('os').system({command!r})")],
        {"state": Payload(exec, code), "param_groups": []},
        Payload(getattr, Payload(__import__, "os"), "system"),
        {Payload(os.system, command): torch.ones(2)},
    ]
    made: list[Path] = []
    for number, payload in enumerate(payloads):
        for protocol in (0, 2, 4):
            data = pickle.dumps(payload, protocol)
            plain, packed = (
                folder / f"hostile-{number}-{protocol}.pkl",
                folder / f"hostile-{number}-{protocol}.pt",
            )
            plain.write_bytes(data)
            with_pickle(packed, data)
            made += [plain, packed]
        torch.save(payload, folder / f"hostile-{number}-legacy.pt", _use_new_zipfile_serialization=False)
        made.append(folder / f"hostile-{number}-legacy.pt")
    return made


def bombs(folder: Path) -> list[Path]:
    """Small files that promise, nest or repeat without end."""
    doubled = (
        b"\x80\x02]"
        + b"".join(b"q" + bytes([i]) + b"]h" + bytes([i]) + b"ah" + bytes([i]) + b"a" for i in range(60))
        + b"."
    )
    hashed = b"\x80\x02}" + b"K\x01" + b"2\x86" * 60 + b"K\x01s."
    tensor = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    tensor += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    absurd = (
        tensor
        + b"\x8a\x08"
        + b"\xff" * 7
        + b"\x00tQK\x00\x8a\x08"
        + b"\xff" * 7
        + b"\x3f\x85K\x01\x85\x89}tR."
    )
    pickles = {
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "bytearray": b"\x80\x05\x96\x00\x00\x00\x00\xff\x00\x00\x00.",
        "text": b"\x80\x02X\xff\xff\xff\xff.",
        "nested": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "tuples": b"\x80\x02)" + b"\x85" * 200_000 + b".",
        "doubled": doubled,
        "hashed": hashed,
        "absurd-shape": absurd,
        "number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "digits": b"\x80\x02L" + b"9" * 200_000 + b"L\n.",
        "endless": b"\x80\x02" + b"]0" * 3_000_000 + b"N.",
        "itself": b"\x80\x02]q\x00h\x00a.",
        "itself-as-state": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
        "no-stop": b"\x80\x02]]]]",
        "empty-stack": b"\x80\x02.",
    }
    made: list[Path] = []
    for name, data in pickles.items():
        (folder / f"bomb-{name}.pkl").write_bytes(data)
        with_pickle(folder / f"bomb-{name}.pt", data)
        made += [folder / f"bomb-{name}.pkl", folder / f"bomb-{name}.pt"]
    return made + archives(folder) + headers(folder)


def archives(folder: Path) -> list[Path]:
    """Zip files that unpack to far more, name members twice or outside, or exchange them."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(40_000_000))
    with zipfile.ZipFile(folder / "bomb-zeros.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.npy", buffer.getvalue())
    torch.save({"a": torch.ones(3), "b": torch.ones(3)}, folder / "base.pt")
    with zipfile.ZipFile(folder / "base.pt") as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(members)).partition("/")[0]
    changes: dict[str, Callable[[zipfile.ZipFile], None]] = {
        "outside": lambda a: a.writestr("../../outside", b"x"),
        "absolute": lambda a: a.writestr("/tmp/absolute", b"x"),
    }
    made = [folder / "bomb-zeros.npz"]
    for name, change in changes.items():
        with zipfile.ZipFile(folder / f"zip-{name}.pt", "w") as archive:
            for member, data in members.items():
                archive.writestr(member, data)
            change(archive)
        made.append(folder / f"zip-{name}.pt")
    whole = (folder / "base.pt").read_bytes()
    for name, old, new in [
        ("swapped", f"{root}/data/0", f"{root}/data/1"),
        ("lost", f"{root}/data/0", f"{root}/data/9"),
        ("no-pickle", f"{root}/data.pkl", f"{root}/atad.pkl"),
    ]:
        table = whole.rindex(b"PK\x01\x02", 0, whole.rindex(old.encode()))
        changed = whole[:table] + whole[table:].replace(old.encode(), new.encode())
        (folder / f"zip-{name}.pt").write_bytes(changed)
        made.append(folder / f"zip-{name}.pt")
    with zipfile.ZipFile(folder / "zip-deflated.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return [*made, folder / "zip-deflated.pt"]


def headers(folder: Path) -> list[Path]:
    """safetensors and npy headers that lie."""
    texts: dict[str, Any] = {
        "shape": {"a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]}},
        "offsets": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 60]}},
        "negative": {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}},
        "type": {"a": {"dtype": "F999", "shape": [1], "data_offsets": [0, 4]}},
        "list": [1, 2, 3],
        "missing": {"a": {"dtype": "F32"}},
    }
    made: list[Path] = []
    for name, header in texts.items():
        text = json.dumps(header).encode()
        (folder / f"header-{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
        made.append(folder / f"header-{name}.safetensors")
    entry = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    twice = b"{" + entry + b"," + entry + b"}"
    (folder / "header-twice.safetensors").write_bytes(struct.pack("<Q", len(twice)) + twice + b"\0" * 4)
    deep = b"[" * 100_000
    (folder / "header-deep.safetensors").write_bytes(struct.pack("<Q", len(deep)) + deep)
    (folder / "header-long.safetensors").write_bytes(b"\xff" * 40)
    for name, header in {
        "shape": "(1000000000000,)",
        "code": "__import__('os').getcwd()",
        "deep": "(" * 5000,
    }.items():
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}".encode()
        (folder / f"header-{name}.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        )
    return [*made, *folder.glob("header-*.npy"), folder / "header-twice.safetensors",
            folder / "header-deep.safetensors", folder / "header-long.safetensors"]  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[str, list[str]]], Path]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "healthy").mkdir()
    (folder / "changed").mkdir()
    canary = folder / "canary"
    paths = list(mutations(healthy_files(folder / "healthy"), folder / "changed", 260))
    paths += hostile_files(folder / "changed", canary) + bombs(folder / "changed")
    assert len(paths) >= 300
    results = examine(paths, folder)
    return {Path(path).name: result for path, result in results.items()}, canary


Outcome = tuple[dict[str, tuple[str, list[str]]], Path]


def test_none_crashes_hangs_or_allocates_a_gigabyte(outcome: Outcome) -> None:
    crashed = {name: result for name, result in outcome[0].items() if result[0] == "crash"}
    assert crashed == {}


def test_no_payload_ran(outcome: Outcome) -> None:
    assert not outcome[1].exists()


def test_every_hostile_pickle_is_called_one(outcome: Outcome) -> None:
    hostile = {name: result for name, result in outcome[0].items() if name.startswith("hostile")}
    assert len(hostile) > 30
    for name, (_, codes) in hostile.items():
        assert "CKP021" in codes or "CKP020" in codes, name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("zip-outside.pt", "CKP017"),
        ("zip-absolute.pt", "CKP017"),
        ("zip-swapped.pt", "CKP017"),
        ("zip-lost.pt", "CKP020"),
        ("zip-no-pickle.pt", "CKP020"),
        ("header-twice.safetensors", "CKP017"),
        ("header-shape.safetensors", "CKP020"),
        ("header-offsets.safetensors", "CKP020"),
        ("header-shape.npy", "CKP020"),
        ("bomb-absurd-shape.pt", "CKP020"),
        ("bomb-memo.pkl", ""),
    ],
)
def test_what_is_wrong_is_named(outcome: Outcome, name: str, code: str) -> None:
    state, codes = outcome[0][name]
    assert (code in codes) if code else state == "read"


def test_a_zip_bomb_is_not_unpacked(outcome: Outcome) -> None:
    assert outcome[0]["bomb-zeros.npz"][1] == ["CKP020"]


@pytest.mark.parametrize("content", [b"", b"x", b"Dear diary, today the loss was NaN.\n" * 100])
def test_a_renamed_text_file_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    verdict = verify(tmp_path / "model.pt")
    assert verdict.unreadable is not None
    assert "model.pt" in verdict.unreadable
    assert not verdict.healthy


def test_a_file_cut_off_anywhere_is_never_called_healthy(tmp_path: Path) -> None:
    torch.save({"w": torch.randn(2000)}, tmp_path / "a.pt")
    save_file({"w": torch.randn(2000)}, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        data = (tmp_path / name).read_bytes()
        for keep in range(0, len(data), 397):
            (tmp_path / f"cut-{name}").write_bytes(data[:keep])
            assert not verify(tmp_path / f"cut-{name}").healthy, (name, keep)
