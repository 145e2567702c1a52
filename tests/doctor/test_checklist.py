"""The prevention list: every item is looked at in the project itself, not printed to be read."""

from __future__ import annotations

from pathlib import Path

import torch

from doctor.small_project import make_project
from doctor.test_doctor import examined
from stayfinite.doctor.checklist import TEN, check_list
from stayfinite.findings.advice import CheckedItem, Status


def listed(folder: Path) -> dict[str, CheckedItem]:
    found, project, findings, _ = examined(folder)
    items = check_list(found, project, findings)
    assert len(items) > TEN
    return {item.title.split()[0].lower(): item for item in items}  # no two titles begin alike


def test_no_two_items_begin_alike(tmp_path: Path) -> None:
    found, project, findings, _ = examined(make_project(tmp_path / "p"))
    items = check_list(found, project, findings)
    titles = [item.title for item in items]
    assert len(set(titles)) == len(titles)


def test_a_healthy_project(healthy: Path) -> None:
    found, project, findings, _ = examined(healthy)
    items = {item.title: item for item in check_list(found, project, findings)}
    by_start = {title.partition(",")[0].partition(":")[0]: item for title, item in items.items()}
    assert by_start["Gradients are clipped"].status is Status.DONE
    assert any("train.py" in place for place in by_start["Gradients are clipped"].where)
    assert by_start["Exact stable forms"].status is Status.DONE
    assert by_start["Checkpoints are saved often enough"].status is Status.DONE
    assert by_start["The log has loss"].status is Status.DONE
    assert by_start["One precision"].status is Status.NOT_APPLICABLE
    assert by_start["Validation during the run"].status is Status.MISSING
    assert by_start["A seed"].status is Status.DONE
    assert items["Data and caches are finite, in range, with legal labels"].status is Status.UNKNOWN


def test_each_fault_turns_its_item(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    before = {i.title: i.status for i in check_list(*examined(folder)[:3])}
    script = folder / "train.py"
    script.write_text(
        script.read_text()
        .replace(
            "    return ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()",
            "    return -model(x).softmax(1).log().mean()",
        )
        .replace("clip_grad_norm_", "no_clip_")
        .replace("torch.save(", "print(")
        .replace("manual_seed(", "unseeded(")
    )
    config = folder / "config.yaml"
    config.write_text(
        config.read_text().replace("seed: 0\n", "amp: true\nfp16: false\nmixed_precision: bf16\n")
    )
    cache = folder / "data"
    cache.mkdir()
    torch.save({"inputs": torch.tensor([[1.0, float("inf")], [0.0, 2.0]])}, cache / "samples.pt")
    after = {i.title: i.status for i in check_list(*examined(folder)[:3])}
    turned = {
        title.split(",")[0].split(":")[0]
        for title in after
        if after[title] is Status.MISSING is not before[title]
    }
    assert {
        "Data and caches are finite",
        "One precision",
        "Exact stable forms",
        "Gradients are clipped",
        "Checkpoints are saved often enough",
        "A seed",
    } <= turned


def test_what_is_only_asked_for_is_not_called_done(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("clip_norm: 1.0", "clip_norm: 0") + "dtype: float16\n")
    items = listed(folder)
    assert (
        items["gradients"].status is Status.MISSING
        and "switches gradient clipping off" in items["gradients"].detail
    )
    assert items["one"].status is Status.UNKNOWN and "no source was seen to act on it" in items["one"].detail


def test_a_guard_counts_where_the_training_script_has_it(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    title = "Loss and gradient norm are checked (NaN and Inf) before they reach the weights"

    def status() -> Status:
        return next(i.status for i in check_list(*examined(folder)[:3]) if i.title == title)

    script = folder / "train.py"
    text = script.read_text()
    script.write_text(text.replace('if math.isfinite(loss.item()) or not config["skip_bad"]:', "if True:"))
    assert status() is Status.MISSING
    (folder / "train_guarded.py").write_text(
        "from stayfinite import Guard\nguard = Guard(None, None)\nif __name__ == '__main__':\n    guard.step(print)\n"
    )
    assert status() is Status.MISSING  # another script's guard does not protect this one
    script.write_text(
        "from stayfinite import Guard\n"
        + text.replace("    start = 0\n", "    guard = Guard(model, optimizer)\n    start = 0\n")
    )
    assert status() is Status.DONE


_LIGHTNING = '''\
"""A Lightning project.

def validation_step(self, batch):
    here only the docstring speaks of one; model.eval() too
"""
import lightning as L
import torch
from torch import nn


class Data(L.LightningDataModule):
    def load_state_dict(self, state):
        """optimizer.load_state_dict(state) is not called here."""


class Net(L.LightningModule):
    def training_step(self, batch, index):
        return nn.functional.mse_loss(self(batch), batch)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = {trainer}
    trainer.fit(Net(), Data(){resume})
'''


def test_what_a_docstring_or_a_definition_says_is_not_done(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_LIGHTNING.format(trainer="L.Trainer()", resume=""))
    items = listed(tmp_path)
    assert items["validation"].status is Status.MISSING
    assert items["a"].status is Status.DONE  # the seed; the rate has no warm-up and comes before it
    resume = next(i for i in check_list(*examined(tmp_path)[:3]) if i.title.startswith("A resume"))
    assert resume.status is Status.MISSING
    assert items["checkpoints"].status is Status.UNKNOWN, "Lightning saves unless it is told not to"
    script.write_text(_LIGHTNING.format(trainer="L.Trainer()", resume=", ckpt_path=None"))
    resume = next(i for i in check_list(*examined(tmp_path)[:3]) if i.title.startswith("A resume"))
    assert resume.status is Status.DONE


def test_a_callback_in_a_hydra_folder_saves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_LIGHTNING.format(trainer="make_trainer()", resume=""))
    assert listed(tmp_path)["checkpoints"].status is Status.MISSING
    (tmp_path / "callbacks.yaml").write_text(
        "checkpoint:\n  _target_: lightning.pytorch.callbacks.ModelCheckpoint\n  save_last: true\n"
    )
    item = listed(tmp_path)["checkpoints"]
    assert (item.status, item.where) == (Status.UNKNOWN, (str(tmp_path / "callbacks.yaml") + ":2",))


_FLAT = """\
import torch

model = torch.nn.Linear(2, 1)
for name in ("weight",):
    print(getattr(model, name).shape)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=False or torch.cuda.is_available())
saved = torch.load("last.pt")
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
{more}
for step in range(10):
    loss = model(torch.randn(4, 2)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_a_scaler_that_a_resume_forgets(tmp_path: Path) -> None:
    """Also where getattr is called for something else, and where the whole script has no function."""
    script = tmp_path / "train.py"
    for more, status in (("", Status.MISSING), ('scaler.load_state_dict(saved["scaler"])', Status.DONE)):
        script.write_text(_FLAT.format(more=more))
        found, project, findings, plan = examined(tmp_path)
        item = next(i for i in check_list(found, project, findings) if i.title.startswith("A resume"))
        assert item.status is status
        assert any(str(script) in command for step in plan for command in step.commands)
