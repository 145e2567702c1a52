"""Losses of batches in which nothing is labelled: 0 there, the same mean everywhere else, and a NaN stays one."""

import gc
from pathlib import Path

import pytest

import preloaded
import prove

TRAINING = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
UNKNOWN = 255
weight = torch.tensor([1.0, 2.0, 1.0, 1.0])
criterion = nn.CrossEntropyLoss(ignore_index=UNKNOWN)
net = nn.Conv2d(3, 4, 1)
balance = nn.Parameter(torch.zeros(()))
opt = torch.optim.SGD([*net.parameters(), balance], 0.1)
for step in range(5):
    logits = net(torch.randn(2, 3, 4, 4))
    cover = torch.randint(0, 4, (2, 4, 4))
    if step == 3:
        cover.fill_(UNKNOWN)
    loss = torch.exp(-balance) * LOSS + balance
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not torch.isfinite(balance)
"""


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.mark.parametrize(
    ("loss", "cured"),
    [
        (
            "F.cross_entropy(logits, cover, ignore_index=UNKNOWN)",
            '(F.cross_entropy(logits, cover, ignore_index=UNKNOWN, reduction="sum") / '
            "(cover != UNKNOWN).sum().clamp(min=1))",
        ),
        (
            "F.cross_entropy(logits, cover, weight=weight, ignore_index=UNKNOWN)",
            "(F.cross_entropy(logits, cover, weight=weight, ignore_index=UNKNOWN) if (cover != UNKNOWN).any() "
            "else logits.sum() * 0.0)",
        ),
        (
            "criterion(logits, cover)",
            "(criterion(logits, cover) if (cover != criterion.ignore_index).any() else logits.sum() * 0.0)",
        ),
    ],
)
def test_a_batch_without_labels_has_a_loss_of_nothing(tmp_path: Path, loss: str, cured: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("LOSS", loss))
    report = prove.proof_of(script)
    assert report.proved is not None, report.remark
    assert report.proved.remedy == "guarded-mean" and report.proved.distortion == 0.0
    assert report.patch is not None and cured in report.patch, report.patch
    assert prove.patched_runs(script, report.patch, preloaded.run) == "clean"


def test_what_is_empty_in_every_step_is_not_cured_by_a_loss_of_nothing(tmp_path: Path) -> None:
    """Nothing is trained then, and no NaN says so any more."""
    script = tmp_path / "train.py"
    always = TRAINING.replace("step == 3", "True").replace("torch.exp(-balance) * LOSS + balance", "LOSS")
    loss = "F.cross_entropy(logits, cover, ignore_index=UNKNOWN) + 0 * balance"
    script.write_text(always.replace("LOSS", loss).replace("range(5)", "range(8)"))
    report = prove.proof_of(script)
    assert report.proved is None
    assert "it is empty in each of them" in report.remark, report.remark


def test_the_steps_that_follow_are_those_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("LOSS", "F.cross_entropy(logits, cover, ignore_index=UNKNOWN)"))
    report = prove.proof_of(script)
    assert report.proved is not None and report.proved.steps == 1  # steps 0 to 4, and step 3 failed
