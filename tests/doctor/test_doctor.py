"""Real runs that failed, or did not: the window, the last good checkpoint, what each place says, the plan."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from doctor.small_project import PROBE, make_project, train
from stayfinite.doctor.budget import Budget
from stayfinite.doctor.compare import all_findings, compare
from stayfinite.doctor.examine import Examination, examine_project
from stayfinite.doctor.inventory import take_inventory
from stayfinite.doctor.plan import make_plan
from stayfinite.doctor.probe import FunctionProbe
from stayfinite.findings import Finding, Severity
from stayfinite.findings.advice import PlanStep
from stayfinite.findings.subjects.project import Project
from stayfinite.lint.settings import Settings


def examined(
    folder: Path, probe: FunctionProbe | None = None, budget: float = 0
) -> tuple[Examination, Project, list[Finding], list[PlanStep]]:
    found = examine_project(take_inventory(str(folder)), Settings(), Budget(budget))
    project = compare(found, probe)
    findings = all_findings(found, project)
    return found, project, findings, make_plan(found, project, findings)


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def test_a_healthy_run_has_no_error_and_no_plan(healthy: Path) -> None:
    found, project, findings, plan = examined(healthy)
    assert [finding for finding in findings if finding.severity is not Severity.INFO] == []
    assert plan == []
    (run,) = project.runs
    assert run.window is None
    assert run.configs == [str(healthy / "config.yaml")]
    assert run.last_good() is run.saved[-1]
    assert len(found.checkpoints) == 10 and found.passed_over == []
    origins = {claim.origin for claim in run.rates}
    assert origins == {"configuration", "log", "optimizer", "scheduler"}
    assert {claim.value for claim in run.rates} == {0.02}


def test_a_run_that_grew_towards_its_failure_goes_back_to_before_the_growth(diverged: Path) -> None:
    _, project, findings, plan = examined(diverged)
    (run,) = project.runs
    log = [json.loads(line) for line in (diverged / "runs/config/log.jsonl").read_text().splitlines()]
    first = next(record["step"] for record in log if isinstance(record["loss"], str))
    assert run.window is not None and run.window.first == first and run.window.to_end
    assert {"PRJ004", "PRJ005", "LOG001", "LOG003"} <= codes(findings)
    good = run.last_good()
    assert good is not None and good.step == 4  # it grew from the first step on: the least grown
    assert any("lr" in setting.name for step in plan for setting in step.settings)
    assert any(f"--resume {good.path}" in command for step in plan for command in step.commands)


def test_a_finite_checkpoint_of_a_dead_run_is_not_good(skipping: Path) -> None:
    _, project, findings, _ = examined(skipping)
    (run,) = project.runs
    assert all(saved.healthy for saved in run.saved)
    dead = {saved.step for saved in run.saved_in_failure()}
    assert run.window is not None and dead == {s for s in range(4, 44, 4) if s >= run.window.first}
    assert "PRJ004" in codes(findings)


@pytest.mark.long
def test_a_probe_tells_a_dead_checkpoint_without_any_log(skipping: Path) -> None:
    """Only finite weights are left of the run; a forward pass tells."""
    _, project, _, _ = examined(skipping)
    window = project.runs[0].window
    assert window is not None
    for saved in project.runs[0].saved:  # a process for each that is probed: two alive and two dead will do
        if not window.first - 9 < (saved.step or 0) < window.first + 8:
            Path(saved.path).unlink()
    (skipping / "runs/config/log.jsonl").unlink()
    (skipping / "check.py").write_text(PROBE)
    _, project, findings, _ = examined(skipping)
    assert len(project.runs[0].saved) == 4 and project.runs[0].last_good() is project.runs[0].saved[-1]
    assert "PRJ004" not in codes(findings)
    probe = FunctionProbe.parse(f"{skipping / 'check.py'}:values")
    _, project, findings, plan = examined(skipping, probe)
    (run,) = project.runs
    good = run.last_good()
    assert good is not None and good.probed and good.step is not None
    later = next(saved for saved in run.saved if saved.step == good.step + 4)
    said = probe(later.path)
    assert said is not None and said.startswith("loss is ")
    assert "PRJ004" in codes(findings)
    assert any(step.title == f"Start from {good.path}" for step in plan)


def test_before_its_first_run_a_project_gets_the_list_and_a_guarded_run(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "new")
    _, project, _, plan = examined(folder)
    assert project.runs == []
    assert any("--checklist" in command for command in plan[-1].commands)
    assert any(command.startswith("stayfinite run ") for command in plan[-1].commands)


def test_screen_output_above_a_run_is_the_same_run(diverged: Path) -> None:
    lines = (diverged / "runs/config/log.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    text = "".join(f"step {r['step']}/40 loss {r['loss']} lr {r['lr']}\n" for r in records)
    (diverged / "nohup.out").write_text(text)
    found, project, findings, _ = examined(diverged)
    assert len(found.logs) == 2 and len(project.runs) == 1
    assert sum(finding.code == "LOG001" for finding in findings) == 1


def test_two_runs_keep_their_own_checkpoints_and_configurations(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "two", lr="5.0")
    train(folder)
    (folder / "calm.yaml").write_text((folder / "config.yaml").read_text().replace("5.0", "0.02"))
    train(folder, "--config", "calm.yaml")
    _, project, findings, _ = examined(folder)
    calm, wild = project.runs
    assert calm.window is None and wild.window is not None
    assert calm.configs == [str(folder / "calm.yaml")] and wild.configs == [str(folder / "config.yaml")]
    assert len(calm.saved) == len(wild.saved) == 10
    assert all(
        str(finding.file).find("calm") < 0 for finding in findings if finding.severity is Severity.ERROR
    )


def test_norms_that_a_scaler_skips_at_the_start_are_not_the_failure(tmp_path: Path) -> None:
    """inf at step 1, fine for 60 steps, then dead: the failure begins at 61."""
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    records = []
    for step in range(1, 101):
        bad = step > 60
        norm = "inf" if step == 1 else "nan" if bad else 1.0 + 0.01 * (step % 7)
        records.append({"step": step, "loss": "nan" if bad else 2.0 - 0.01 * step, "grad_norm": norm})
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    model = torch.nn.Linear(3, 3)
    for step in (40, 60, 80):
        torch.save({"step": step, "model": model.state_dict()}, run / f"step_{step}.pt")
    _, project, _, _ = examined(tmp_path)
    (only,) = project.runs
    assert only.window is not None and only.window.first == 61
    good = only.last_good()
    assert good is not None and good.step == 60


def test_a_run_that_came_back_may_go_on_from_after_it(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    records = [{"step": s, "loss": "nan" if 30 <= s < 60 else 2.0 - 0.01 * s} for s in range(1, 161)]
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in (20, 40, 150):
        torch.save({"step": step, "model": torch.nn.Linear(3, 3).state_dict()}, run / f"step_{step}.pt")
    _, project, _, _ = examined(tmp_path)
    (only,) = project.runs
    good = only.last_good()
    assert good is not None and good.step == 150
    assert [saved.step for saved in only.saved_in_failure()] == [40]


def test_the_budget_leaves_files_out_and_says_which(diverged: Path) -> None:
    spent = Budget(0.001)
    found = examine_project(take_inventory(str(diverged)), Settings(), spent)
    assert found.checkpoints == [] and len(spent.left_out) == 11
    assert found.lint.files  # what costs nothing is always read


def test_caches_and_weights_alone_are_no_checkpoints_of_the_run(healthy: Path) -> None:
    cache = healthy / "cache"
    cache.mkdir()
    torch.save(
        {"embeddings": torch.full((8, 4), float("nan")), "labels": torch.arange(8)}, cache / "embeddings.pt"
    )
    torch.save(torch.nn.Linear(4, 4).state_dict(), cache / "teacher.pt")
    found, project, findings, _ = examined(healthy)
    assert [Path(verdict.data.path).name for verdict in found.data] == ["embeddings.pt"]
    assert [Path(verdict.checkpoint.path).name for verdict in found.weights] == ["teacher.pt"]
    assert len(project.runs[0].saved) == 10
    assert any(f.code.startswith("DAT") and f.severity is Severity.ERROR for f in findings)


def test_incidents_of_a_guarded_run_are_read(healthy: Path) -> None:
    from stayfinite.findings import all_rules

    incident = healthy / "stayfinite-runs" / "a" / "incidents" / "0001"
    incident.mkdir(parents=True)
    rule = next(rule for rule in all_rules() if rule.code == "NUM001")
    finding = rule.finding("log of zero", fix="clamp", evidence={}, file="loss.py", line=3)
    (incident / "incident.json").write_text(
        json.dumps({"schema": 1, "step": 7, "findings": [finding.to_json()]})
    )
    found, _, findings, plan = examined(healthy)
    assert len(found.incidents) == 1 and "NUM001" in codes(findings)
    assert "NUM001" in plan[0].title
    shutil.rmtree(incident)


SCRIPT = """import torch
x = torch.zeros(4, requires_grad=True)
loss = torch.log(x).sum()
loss.backward()
"""


@pytest.mark.parametrize("mended", [False, True])
def test_what_was_located_and_cured_comes_first_until_it_is_mended(tmp_path: Path, mended: bool) -> None:
    from stayfinite.findings import all_rules
    from stayfinite.findings.finding import Proof

    (tmp_path / "config.yaml").write_text("lr: 1e-3\nwarmup_steps: 500\nmax_steps: 300\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("torch.log(x)", "x") if mended else SCRIPT)
    incident = tmp_path / "stayfinite-runs" / "a" / "incidents" / "0001"
    incident.mkdir(parents=True)
    rule = next(rule for rule in all_rules() if rule.code == "NUM001")
    finding = rule.finding("log of zero", fix="clamp", evidence={}, file=str(script), line=3)
    finding = replace(
        finding, proof=Proof(remedy="log-floor", finite=True, loss=1.0, distortion=0.0, tried=3)
    )
    birth = {"file": str(script), "line": 3, "source": "loss = torch.log(x).sum()"}
    (incident / "incident.json").write_text(
        json.dumps({"schema": 1, "step": 0, "birth": birth, "findings": [finding.to_json()]})
    )
    _, _, findings, plan = examined(tmp_path)
    assert {"CFG001", "CFG006"} <= codes(findings)
    assert ("NUM001" in codes(findings)) is not mended
    assert ("NUM001" in plan[0].title) is not mended


@pytest.mark.parametrize("file", ["a\0b", "\ud800", "", 7, "/dev/zero"])
def test_an_incident_may_name_any_file(tmp_path: Path, file: object) -> None:
    """It is not opened: only the sources that were read are asked."""
    from stayfinite.findings import all_rules

    (tmp_path / "train.py").write_text(SCRIPT)
    incident = tmp_path / "stayfinite-runs" / "a" / "incidents" / "0001"
    incident.mkdir(parents=True)
    rule = next(rule for rule in all_rules() if rule.code == "NUM001")
    finding = rule.finding("log of zero", fix="clamp", evidence={}, file="train.py", line=3)
    data = {"schema": 1, "step": 0, "birth": {"file": file, "source": "x"}, "findings": [finding.to_json()]}
    (incident / "incident.json").write_text(json.dumps(data))
    _, _, findings, _ = examined(tmp_path)
    assert "NUM001" in codes(findings)


def test_trainer_folders_and_lightning_folders_are_two_runs(tmp_path: Path) -> None:
    """checkpoint-N/trainer_state.json of the Trainer, version_0/metrics.csv of Lightning, a launcher of the first."""
    from safetensors.torch import save_file

    model = torch.nn.Linear(4, 4)
    history: list[dict[str, float]] = []
    for step in range(5, 45, 5):
        history.append(
            {"loss": float("nan") if step > 25 else 1.0 / step, "learning_rate": 5e-5, "step": step}
        )
        if step % 10 == 0:
            folder = tmp_path / "out" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            save_file(model.state_dict(), folder / "model.safetensors")
            (folder / "trainer_state.json").write_text(
                json.dumps({"global_step": step, "log_history": history})
            )
    config = {"output_dir": "out", "learning_rate": 5e-5, "bf16": True, "per_device_train_batch_size": 8}
    (tmp_path / "args.json").write_text(json.dumps(config, indent=1))
    (tmp_path / "run.sh").write_text("accelerate launch --mixed_precision fp16 train.py args.json\n")
    version = tmp_path / "lightning_logs" / "version_0"
    (version / "checkpoints").mkdir(parents=True)
    (version / "hparams.yaml").write_text("lr: 0.01\nbatch_size: 8\n")
    (version / "metrics.csv").write_text(
        "step,train_loss\n" + "".join(f"{s},{1 / (s + 1)}\n" for s in range(50))
    )
    torch.save(
        {"global_step": 40, "state_dict": model.state_dict()},
        version / "checkpoints" / "epoch=0-step=40.ckpt",
    )
    _, project, findings, _ = examined(tmp_path)
    lightning, trainer = project.runs
    assert lightning.folder == str(version) and [saved.step for saved in lightning.saved] == [40]
    assert lightning.configs == [str(version / "hparams.yaml")]
    assert all(claim.origin != "launcher" for claim in lightning.precisions)
    assert trainer.configs == [str(tmp_path / "args.json")] and len(trainer.logs) == 1
    assert trainer.window is not None and trainer.window.first == 30 and trainer.window.to_end
    good = trainer.last_good()
    assert good is not None and good.step == 20
    assert [f.code for f in findings if f.code.startswith("PRJ")] == ["PRJ004", "PRJ002", "PRJ005"]


def test_a_few_finite_values_are_no_way_back(tmp_path: Path) -> None:
    """Batches that fail now and then: what was saved in between is not from after the failure."""
    records = [
        {"step": s, "loss": "nan" if s in (66, 67, 69, 72, 73) else 3.0 - 0.01 * s} for s in range(1, 81)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in (40, 80):
        torch.save({"step": step, "model": torch.nn.Linear(3, 3).state_dict()}, tmp_path / f"step_{step}.pt")
    _, project, _, _ = examined(tmp_path)
    (run,) = project.runs
    good = run.last_good()
    assert run.window is not None and run.window.first == 66 and good is not None and good.step == 40


def test_a_record_of_the_settings_is_not_what_to_change(tmp_path: Path) -> None:
    """hparams.yaml and .hydra/config.yaml are written by the run; the plan changes neither."""
    for folder, name in (("lightning_logs/version_0", "hparams.yaml"), ("outputs/a", ".hydra/config.yaml")):
        run = tmp_path / folder
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text("lr: 0.01\nbatch_size: 8\n")
        lines = [json.dumps({"step": s, "loss": "nan" if s > 60 else 1 / s}) for s in range(1, 81)]
        (run / "log.jsonl").write_text("\n".join(lines) + "\n")
        _, project, _, plan = examined(run.parent)
        assert project.runs[0].configs == [str(run / name)]
        assert not [step for step in plan if step.settings]


def test_a_run_whose_only_configuration_is_that_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(
        json.dumps({"train_batch_size": 8, "fp16": {"enabled": True}, "zero_optimization": {"stage": 2}})
    )
    (tmp_path / "launch.sh").write_text("deepspeed train.py --deepspeed_config ds_config.json --bf16\n")
    lines = [json.dumps({"step": s, "loss": 1 / s}) for s in range(1, 40)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    _, project, findings, _ = examined(tmp_path)
    assert project.runs[0].configs == [str(tmp_path / "ds_config.json")]
    (differs,) = [finding for finding in findings if finding.code == "PRJ002"]
    assert "fp16" in differs.message and "bf16 (--bf16," in differs.message


def test_a_checkpoint_without_a_step_says_so(tmp_path: Path) -> None:
    from stayfinite.report.doctor_text import run_lines

    (tmp_path / "train.log").write_text("".join(f"epoch {e} loss {1 / (e + 1):.4f}\n" for e in range(9)))
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
    torch.save({"model": model.state_dict(), "optimizer": optimizer}, tmp_path / "best.pth")
    _, project, _, _ = examined(tmp_path)
    shown = " ".join(str(line) for line in run_lines(project.runs[0]))
    assert "(step not known)" in shown and "None" not in shown


@pytest.mark.parametrize(("first_bad", "at_once"), [(17, True), (18, False)])
def test_weights_whose_next_step_failed_are_not_praised(
    first_bad: int, at_once: bool, tmp_path: Path
) -> None:
    """By the log the checkpoint is from before the failure; the failing step began with it all the same."""
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    losses = [(step, "NaN" if step >= first_bad else f"{3 + step % 3 / 10}") for step in range(1, 25)]
    (run / "log.jsonl").write_text("".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in losses))
    for step in (8, 16):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, run / f"step_{step}.pt")
    _, project, _, plan = examined(tmp_path)
    good = project.runs[0].last_good()
    assert good is not None and good.step == 16
    (start,) = [step for step in plan if step.title == f"Start from {good.path}"]
    assert ("began with these very weights" in start.why) is at_once
