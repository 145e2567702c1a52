"""Every format gives the same picture: real files written by the libraries that define the formats."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

from stayfinite.checkpoint import CheckpointVerdict, verify
from stayfinite.findings.subjects.checkpoint import Kind, Tensor

torch.set_num_threads(1)
NAN = float("nan")


def trained(steps: int = 3) -> dict[str, Any]:
    """A small model with everything that a checkpoint holds, after a few real steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=50)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "ema": average.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "step": steps,
    }


def tensor(verdict: CheckpointVerdict, name: str) -> Tensor:
    return next(t for t in verdict.checkpoint.tensors if t.name == name)


def codes(verdict: CheckpointVerdict) -> set[str]:
    return {finding.code for finding in verdict.findings}


@pytest.mark.parametrize("modern", [True, False], ids=["zip", "legacy"])
def test_torch_file_with_everything(tmp_path: Path, modern: bool) -> None:
    state = trained()
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=modern)
    verdict = verify(tmp_path / "a.pt")
    assert verdict.findings == []
    checkpoint = verdict.checkpoint
    assert checkpoint.step == 3
    assert [g.lr for g in checkpoint.optimizers[0].groups] == [state["optimizer"]["param_groups"][0]["lr"]]
    assert checkpoint.schedulers[0].kind == "OneCycleLR"
    assert checkpoint.scalers[0].scale == 65536.0
    assert checkpoint.rates()["peak"] == [5e-3]
    assert tensor(verdict, "model.1.running_var").kind is Kind.BUFFERS
    assert tensor(verdict, "ema.module.0.weight").kind is Kind.AVERAGE
    moment = tensor(verdict, "optimizer.state.0.exp_avg_sq")
    assert (moment.kind, moment.role, moment.parameter) == (Kind.OPTIMIZER, "exp_avg_sq", "model.0.weight")


@pytest.mark.parametrize(
    ("place", "kind", "code"),
    [
        (("model", "3.weight"), Kind.WEIGHTS, "CKP001"),
        (("model", "1.running_mean"), Kind.BUFFERS, "CKP002"),
        (("optimizer", "state", 4, "exp_avg"), Kind.OPTIMIZER, "CKP003"),
        (("ema", "module.3.weight"), Kind.AVERAGE, "CKP004"),
    ],
)
def test_each_kind_of_state_is_told_apart(
    tmp_path: Path, place: tuple[Any, ...], kind: Kind, code: str
) -> None:
    state = trained()
    target: Any = state
    for key in place:
        target = target[key]
    target.view(-1)[2] = NAN
    torch.save(state, tmp_path / "a.pt")
    for verdict in (verify(tmp_path / "a.pt"), verify(state)):
        assert codes(verdict) == {code}
        (bad,) = verdict.bad_tensors
        assert bad.kind is kind
        assert bad.statistics is not None
        assert (bad.statistics.nan, bad.statistics.inf) == (1, 0)


def test_whole_module_is_read_without_its_class(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[0].weight[1, 2] = float("inf")
    torch.save(model, tmp_path / "module.pt")
    verdict = verify(tmp_path / "module.pt")
    bad = tensor(verdict, "0.weight")
    assert bad.statistics is not None
    assert (bad.statistics.inf, bad.statistics.first_bad) == (1, (1, 2))
    assert tensor(verdict, "1.running_mean").kind is Kind.BUFFERS
    refused = next(f for f in verdict.findings if f.code == "CKP021")
    assert "torch.nn.modules.linear.Linear" in refused.evidence["globals"]
    assert refused.severity.value == "info"


def test_refused_globals_are_those_torch_refuses(tmp_path: Path) -> None:
    state = {"args": Path("x"), "array": np.arange(4.0), "weight": torch.ones(2)}
    torch.save(state, tmp_path / "a.pt")
    finding = next(f for f in verify(tmp_path / "a.pt").findings if f.code == "CKP021")
    unsafe = set(torch.serialization.get_unsafe_globals_in_checkpoint(str(tmp_path / "a.pt")))
    assert set(finding.evidence["globals"]) == unsafe


def test_safetensors_single_and_sharded(tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.randn(5, 5), "b.weight": torch.full((3,), NAN)}, tmp_path / "one.safetensors"
    )
    verdict = verify(tmp_path / "one.safetensors")
    assert [t.name for t in verdict.bad_tensors] == ["b.weight"]
    folder = tmp_path / "sharded"
    folder.mkdir()
    shards = {"model-00001-of-00002.safetensors": "a.weight", "model-00002-of-00002.safetensors": "b.weight"}
    for file, name in shards.items():
        save_file({name: torch.randn(4, 4)}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, name in shards.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert verify(folder).healthy
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "CKP016" in codes(verify(folder))


def test_trainer_folder(tmp_path: Path) -> None:
    state = trained()
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    save_file(state["model"], folder / "model.safetensors")
    torch.save(state["optimizer"], folder / "optimizer.pt")
    torch.save(state["scheduler"], folder / "scheduler.pt")
    torch.save(state["scaler"], folder / "scaler.pt")
    torch.save({"python": (3, (1, 2), None), "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(
        json.dumps({"global_step": 3, "epoch": 0.5, "log_history": []})
    )
    verdict = verify(folder)
    assert verdict.findings == []
    assert (verdict.checkpoint.step, verdict.checkpoint.step_from) == (3, "trainer_state.json")
    assert tensor(verdict, "optimizer.state.0.exp_avg").parameter == "0.weight"
    assert tensor(verdict, "rng_state.cpu").kind is Kind.RANDOM
    (folder / "trainer_state.json").write_text('{"global_step": 3, "log_history": [{"loss": NaN}]}')
    assert codes(verify(folder)) == {"CKP005"}


def test_lightning_layout(tmp_path: Path) -> None:
    state = trained()
    checkpoint = {
        "state_dict": state["model"],
        "optimizer_states": [state["optimizer"]],
        "lr_schedulers": [state["scheduler"]],
        "global_step": 3,
        "epoch": 0,
        "pytorch-lightning_version": "2.5.0",
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(float("inf")), "wait_count": 0}},
        "hyper_parameters": {"lr": 1e-3},
    }
    torch.save(checkpoint, tmp_path / "a.ckpt")
    verdict = verify(tmp_path / "a.ckpt")
    assert verdict.findings == []
    assert tensor(verdict, "optimizer_states.0.state.0.exp_avg").parameter == "state_dict.0.weight"


def test_guard_checkpoint(tmp_path: Path) -> None:
    state = trained()
    payload = {
        "stayfinite": 1,
        "model": state["model"],
        "optimizers": [state["optimizer"]],
        "schedulers": [state["scheduler"]],
        "scaler": state["scaler"],
        "ema": [state["ema"]],
        "rng": {"torch": torch.get_rng_state()},
        "step": 3,
        "data": {"epoch": 0, "batch": 3},
        "guard": {},
    }
    torch.save(payload, tmp_path / "step_3.pt")
    assert verify(tmp_path / "step_3.pt").findings == []
    state["ema"]["module.0.bias"][0] = NAN
    torch.save(payload, tmp_path / "step_3.pt")
    (bad,) = verify(tmp_path / "step_3.pt").bad_tensors
    assert (bad.kind, bad.name) == (Kind.AVERAGE, "ema.0.module.0.bias")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint(tmp_path: Path) -> None:
    state = trained()
    state["model"]["3.weight"][1, 1] = NAN
    dcp.save(
        {"model": state["model"], "optimizer": state["optimizer"]},
        checkpoint_id=tmp_path / "dcp",
        no_dist=True,
    )
    verdict = verify(tmp_path / "dcp")
    assert codes(verdict) >= {"CKP001"}
    bad = tensor(verdict, "model.3.weight")
    assert bad.statistics is not None
    assert (bad.statistics.nan, bad.statistics.first_bad) == (1, (1, 1))
    assert verdict.checkpoint.optimizers[0].step == 3
    next((tmp_path / "dcp").glob("*.distcp")).unlink()
    assert "CKP016" in codes(verify(tmp_path / "dcp"))


def test_zero_shards_of_ranks(tmp_path: Path) -> None:
    for rank, step in ((0, 10), (1, 10)):
        moments = {0: {"exp_avg": torch.randn(8), "exp_avg_sq": torch.rand(8), "step": step}}
        base = {"state": moments, "param_groups": [{"lr": 1e-4, "betas": (0.9, 0.99), "params": [0]}]}
        state = {"optimizer_state_dict": {"base_optimizer_state": base, "fp32_flat_groups": [torch.randn(8)]}}
        torch.save(state, tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    module = {"module": {"w": torch.randn(4, 4)}, "global_steps": 10, "dp_world_size": 2}
    torch.save(module, tmp_path / "mp_rank_00_model_states.pt")
    assert not [f for f in verify(tmp_path).findings if f.severity.value == "error"]
    (tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    moments[0]["exp_avg"][3] = NAN
    torch.save(state, tmp_path / "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    assert {"CKP003", "CKP016"} <= codes(verify(tmp_path))


def test_ranks_saved_at_different_steps(tmp_path: Path) -> None:
    for rank, step in ((0, 1400), (1, 1300)):
        torch.save({"model": {"flat": torch.randn(10)}, "step": step}, tmp_path / f"model_rank_{rank}.pt")
    verdict = verify(tmp_path)
    (finding,) = [f for f in verdict.findings if f.code == "CKP018"]
    assert (finding.evidence["lowest"], finding.evidence["highest"]) == (1300, 1400)


@pytest.mark.parametrize("compressed", [False, True])
def test_numpy_archive(tmp_path: Path, compressed: bool) -> None:
    arrays: dict[str, Any] = {
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "swapped": np.arange(6, dtype=">f4"),
        "half": np.ones((2, 2), dtype=np.float16),
    }
    arrays["fortran"][2, 1] = np.nan
    arrays["swapped"][4] = np.inf
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", **arrays)
    verdict = verify(tmp_path / "a.npz")
    found = {t.name: t.statistics.first_bad for t in verdict.bad_tensors if t.statistics}
    assert found == {"fortran": (2, 1), "swapped": (4,)}
    np.save(tmp_path / "b.npy", arrays["swapped"])
    assert verify(tmp_path / "b.npy").bad_tensors[0].statistics.first_bad == (4,)  # type: ignore[union-attr]


def test_plain_pickle_of_arrays_and_tensors(tmp_path: Path) -> None:
    values = np.arange(30000.0)
    values[29999] = np.nan
    with (tmp_path / "a.pkl").open("wb") as handle:
        pickle.dump({"array": values, "tensor": torch.tensor([1.0, NAN]), "list": [1, 2]}, handle)
    verdict = verify(tmp_path / "a.pkl")
    found = {t.name: t.statistics.first_bad for t in verdict.bad_tensors if t.statistics}
    assert found == {"array": (29999,), "tensor": (1,)}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tied_sparse_quantised_and_narrow_types(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    shared[0, 0] = NAN
    sparse = torch.eye(4).to_sparse()
    sparse.values()[2] = float("inf")
    state = {
        "embed.weight": shared,
        "head.weight": shared,
        "sparse": sparse,
        "quantised": torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
        "f8": torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn),
        "bf16": torch.tensor([1.0, float("inf")], dtype=torch.bfloat16),
        "complex": torch.tensor([1 + 1j, complex(NAN, 0)]),
        "mask": torch.full((3, 3), float("-inf")).triu(1),
    }
    torch.save(state, tmp_path / "a.pt")
    for verdict in (verify(tmp_path / "a.pt"), verify(state)):
        names = {t.name: t.statistics.bad for t in verdict.bad_tensors if t.statistics}
        assert names == {"embed.weight": 1, "sparse.values": 1, "f8": 1, "bf16": 1, "complex": 1}
        assert tensor(verdict, "embed.weight").aliases == [("head.weight", Kind.WEIGHTS)]
        assert not any("mask" in finding.message for finding in verdict.findings)


def test_rates_of_chained_schedulers(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}])
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    chain = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[4])
    for _ in range(6):
        optimizer.step()
        chain.step()
    torch.save(
        {"model": model.state_dict(), "opt": optimizer.state_dict(), "sched": chain.state_dict()},
        tmp_path / "a.pt",
    )
    checkpoint = verify(tmp_path / "a.pt").checkpoint
    (scheduler,) = checkpoint.schedulers
    assert scheduler.kind == "SequentialLR"
    assert [inner.kind for inner in scheduler.inner] == ["LinearLR", "CosineAnnealingLR"]
    assert checkpoint.rates()["initial"] == [0.01, 0.1]
    assert [group.lr for group in checkpoint.optimizers[0].groups] == [
        g["lr"] for g in optimizer.param_groups
    ]


def test_memory_file_system_url(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    torch.save({"w": torch.tensor([1.0, NAN])}, tmp_path / "a.pt")
    with fsspec.open("memory://run/a.pt", "wb") as handle:
        handle.write((tmp_path / "a.pt").read_bytes())
    assert verify("memory://run/a.pt").bad_tensors[0].name == "w"
