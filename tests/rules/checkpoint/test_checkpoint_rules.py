"""Each CKP rule on a real file that has the fault, and on the same file without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stayfinite.checkpoint import verify
from stayfinite.findings import Finding, all_rules

torch.set_num_threads(1)
State = dict[str, Any]


@pytest.fixture(scope="module")
def healthy() -> State:
    """Three equal blocks with BatchNorm, AdamW, OneCycle, a scaler and an average, after 20 real steps."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(*blocks, nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=40)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "ema": average.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "step": 20,
    }


def findings(state: State, folder: Path) -> list[Finding]:
    torch.save(state, folder / "a.pt")
    return verify(folder / "a.pt").findings


def test_the_healthy_file_has_no_finding(healthy: State, tmp_path: Path) -> None:
    assert findings(healthy, tmp_path) == []


def _put(*path: Any, value: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        target: Any = state
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


def _halve_second_moments(state: State) -> None:
    for entry in state["optimizer"]["state"].values():
        entry["exp_avg"] = (entry["exp_avg"] * 100).half()
        entry["exp_avg_sq"] = (entry["exp_avg_sq"] * 1e-9).half()


def _share_memory(state: State) -> None:
    state["ema"] = {f"module.{name}": tensor for name, tensor in state["model"].items()}


def _replace_head(state: State) -> None:
    state["model"]["6.weight"] = torch.randn(10, 8)
    del state["ema"]


def _copy_weights(state: State) -> None:
    state["ema"] = {f"module.{name}": tensor.clone() for name, tensor in state["model"].items()}


FAULTS: list[tuple[str, str, Callable[[State], None]]] = [
    ("CKP001", "error", _put("model", "6.bias", 0, value=float("inf"))),
    ("CKP002", "error", _put("model", "2.1.running_var", 3, value=float("nan"))),
    ("CKP003", "error", _put("optimizer", "state", 2, "exp_avg_sq", 0, value=float("inf"))),
    ("CKP004", "error", _put("ema", "module.6.bias", 0, value=float("nan"))),
    ("CKP005", "error", _put("optimizer", "param_groups", 0, "lr", value=float("nan"))),
    ("CKP005", "warning", _put("loss", value=float("nan"))),
    ("CKP006", "warning", _put("model", "2.0.weight", 0, value=70000.0)),
    ("CKP007", "warning", _put("model", "6.bias", value=torch.tensor([40000.0, 1.0], dtype=torch.float16))),
    ("CKP008", "warning", _put("model", "3.0.weight", value=torch.zeros(8, 8))),
    ("CKP009", "error", _put("model", "3.0.weight", 0, value=1e30)),
    ("CKP010", "error", _put("model", "1.1.running_var", 2, value=-0.5)),
    ("CKP010", "warning", _put("model", "1.1.running_var", 2, value=0.0)),
    ("CKP011", "error", _put("optimizer", "state", 0, "exp_avg_sq", 0, value=-1e-3)),
    ("CKP011", "error", _halve_second_moments),
    ("CKP012", "info", _put("optimizer", "state", 0, "step", value=torch.tensor(3.0))),
    ("CKP012", "error", _put("optimizer", "state", 0, "step", value=torch.tensor(-1.0))),
    ("CKP012", "warning", lambda state: state.update(global_step=7)),
    ("CKP013", "error", _put("scaler", "scale", value=0.0)),
    ("CKP013", "warning", _put("scaler", "scale", value=0.25)),
    ("CKP014", "warning", lambda state: [state.pop(key) for key in ("optimizer", "scheduler")] and None),
    ("CKP014", "warning", lambda state: state.pop("scheduler") and None),
    ("CKP014", "warning", _put("optimizer", "state", value={})),
    ("CKP015", "warning", _replace_head),
    ("CKP019", "error", _put("ema", "module.6.weight", value=torch.randn(3, 8))),
    ("CKP019", "warning", _share_memory),
    ("CKP019", "warning", _copy_weights),
    ("CKP023", "warning", _put("optimizer", "param_groups", 0, "lr", value=1e-6)),
]


@pytest.mark.parametrize(
    ("code", "level", "change"), FAULTS, ids=[f"{c}-{lv}-{i}" for i, (c, lv, _) in enumerate(FAULTS)]
)
def test_each_fault_is_found(
    healthy: State, tmp_path: Path, code: str, level: str, change: Callable[[State], None]
) -> None:
    state = copy.deepcopy(healthy)
    change(state)
    found = findings(state, tmp_path)
    assert (code, level) in {(finding.code, finding.severity.value) for finding in found}, found
    worst = [finding for finding in found if finding.severity.value == "error"]
    assert {finding.code for finding in worst} <= {code}, worst


def test_weights_only_is_information(healthy: State, tmp_path: Path) -> None:
    (finding,) = findings(healthy["model"], tmp_path)
    assert (finding.code, finding.severity.value) == ("CKP014", "info")


def test_masks_and_unset_bests_are_no_findings(healthy: State, tmp_path: Path) -> None:
    state = copy.deepcopy(healthy)
    state["model"]["attn.mask"] = torch.full((4, 4), float("-inf")).triu(1)
    state["model"]["attn.masked_bias"] = torch.tensor(-1e9)
    state["model"]["causal"] = torch.full((4, 4), torch.finfo(torch.float32).min).triu(1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    )
    state["plateau"] = plateau.state_dict()
    state["best_loss"] = float("inf")
    assert findings(state, tmp_path) == []


def test_rate_of_a_config_beside_it(healthy: State, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("optim:\n  lr: 1e-4\n")
    (finding,) = findings(healthy, tmp_path)
    assert finding.code == "CKP022"
    assert (finding.evidence["configured"], finding.evidence["peak"]) == (1e-4, [5e-3])
    assert "1e-04" in finding.fix or "0.0001" in finding.fix
    for same in ("lr: 5e-3", "learning_rate: 2.0e-4"):
        (tmp_path / "config.yaml").write_text(same)
        assert findings(healthy, tmp_path) == []


def test_every_page_has_its_six_headings() -> None:
    headings = (
        "What it finds",
        "Why it is bad",
        "Example",
        "The fix",
        "The popular fix that does not work",
        "References",
    )
    pages = [rule for rule in all_rules() if rule.code.startswith("CKP")]
    assert len(pages) == 23
    for rule in pages:
        assert all(rule.section(heading) for heading in headings), rule.code
