"""Rules of the run as a whole, on evidence written down: what they say, and where they must be silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.written import within
from stayfinite.findings import Finding, Severity, TensorSummary
from stayfinite.findings.incident import Birth
from stayfinite.findings.ranking import explain, rank
from stayfinite.findings.subjects.failed_step import FailedStep, Sink
from stayfinite.findings.subjects.run_record import (
    ClipCall,
    GradientFacts,
    LoadEvent,
    OptimizerFacts,
    Place,
    ReplicaFacts,
    RoundedIntegers,
    RunRecord,
    ScalerFacts,
    SchedulerFacts,
    StateTensor,
    StepRecord,
    UpdateAudit,
)
from stayfinite.findings.subjects.traced_birth import Operand, Producer, TracedBirth
from stayfinite.rules.run.growth import growth

HERE = Place("train.py", 12)
COMPLETE = FailedStep(step=100, phase="state", trigger="parameter", run=RunRecord(complete=True))
SCALER = ScalerFacts(65536.0, 65536.0, False, 100, 0, 0, 0, 0, 0, HERE)


def birth(op: str, transition: str, phase: str = "forward", dtype: str = "float32") -> TracedBirth:
    shown = Birth(f"aten.{op}.default", op, "train.py", 7, "x", "f", None, "inf", 0, 1, 8, (0,), dtype)
    return TracedBirth(shown, phase, transition)


def causes(step: FailedStep) -> list[str]:
    return [finding.cause for finding in explain(step)]


def records(losses: list[float], norms: list[float] | None = None) -> tuple[StepRecord, ...]:
    norms = norms or losses
    return tuple(
        StepRecord(i, loss, norm, 0.1) for i, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    )


def test_a_finished_healthy_run_has_no_finding() -> None:
    step = within(
        replace(COMPLETE, gradients=(GradientFacts(False, False),)),
        history=records([1.0 / (i + 1) for i in range(64)]),
        scalers=(SCALER,),
        schedulers=(SchedulerFacts("LambdaLR", 0, 64, (0.1, 0.2), True, False),),
        clips=(ClipCall(HERE, 1.0, 64, 0.5),),
        updates=(UpdateAudit("bfloat16", 1000, 400, 8, 0),),
    )
    assert explain(step) == []


@pytest.mark.parametrize("trigger", ["loss", "gradient", "parameter"])
def test_a_failure_that_does_not_repeat(trigger: str) -> None:
    step = FailedStep(3, "forward", trigger, sink=Sink(trigger, None), reproduced=None)
    assert causes(step) == []  # nobody has replayed it, or the replay did not get there
    again = replace(step, reproduced=False)
    assert causes(again) == ["HARDWARE_KERNEL"]
    assert causes(replace(again, births=(birth("log", "finite->inf"),))) == []


@pytest.mark.parametrize("factor", [1.5, 3.0, 10.0])
def test_growth_over_steps_is_divergence_and_one_jump_is_not(factor: float) -> None:
    growing = records([factor**i for i in range(30)])
    step = FailedStep(
        30, "forward", "loss", run=RunRecord(history=growing), births=(birth("mse_loss", "finite->inf"),)
    )
    assert causes(step)[0] == "LR_DIVERGENCE"
    calm = records([1.0] * 20 + [1e12])
    assert growth(calm) is None
    assert "LR_DIVERGENCE" not in causes(within(step, history=calm))
    assert causes(within(step, history=calm))[0] == "BAD_BATCH_SPIKE"


def test_growth_is_seen_through_noise_but_not_invented() -> None:
    noisy = records([2.0**i * (1.3 if i % 3 else 0.8) for i in range(25)])
    assert growth(noisy) is not None
    assert growth(records([1.0, 2.0, 1.0, 2.0, 1.5, 1.8])) is None
    assert growth(records([5.0, 1.0, 40.0])) is None
    assert growth(()) is None


def test_a_domain_error_in_a_growing_run_is_named_before_the_rate() -> None:
    operand = Operand(TensorSummary("self", (8,), "float32", 0.0, 1.0, zeros=1), requires_grad=True)
    born = replace(birth("log", "finite->inf"), operands=(operand,), facts={"boundary": 1, "outside": 0})
    step = FailedStep(
        30, "forward", "loss", run=RunRecord(history=records([2.0**i for i in range(30)])), births=(born,)
    )
    assert causes(step) == ["LOG_DOMAIN", "LR_DIVERGENCE"]


def test_a_warm_up_that_never_ends_beats_the_rate() -> None:
    schedule = SchedulerFacts("LambdaLR", 0, 400, (0.001, 2.0), True, False, created=HERE)
    step = FailedStep(
        400,
        "forward",
        "loss",
        RunRecord(history=records([2.0**i for i in range(30)]), schedulers=(schedule,)),
        births=(birth("mse_loss", "finite->inf"),),
    )
    assert causes(step)[:2] == ["CONFIG_MISTAKE", "LR_DIVERGENCE"]
    one_cycle = replace(schedule, kind="OneCycleLR")
    assert "CONFIG_MISTAKE" not in causes(within(step, schedulers=(one_cycle,)))
    assert causes(within(COMPLETE, schedulers=(schedule,))) == []


def test_a_rate_of_zero_is_a_mistake_unless_the_schedule_is_over() -> None:
    still = tuple(StepRecord(i, 1.0, 1.0, 0.0) for i in range(20))
    assert causes(within(COMPLETE, history=still, first_steps=still)) == ["CONFIG_MISTAKE"]
    over = SchedulerFacts("LambdaLR", 900, 20, (0.0,), False, False)
    assert causes(within(COMPLETE, history=still, first_steps=still, schedulers=(over,))) == []


@pytest.mark.parametrize(
    ("scaler", "collapsed"),
    [
        (replace(SCALER, scale=1e-30, skipped=140, streak=140, forward_bad=0), True),
        (replace(SCALER, scale=2048.0, skipped=5, streak=5, forward_bad=5), True),
        (replace(SCALER, scale=0.5, skipped=17, streak=17), True),
        (replace(SCALER, scale=0.0156, skipped=22, streak=0), False),
        (replace(SCALER, scale=8192.0, skipped=3, streak=3), False),
        (replace(SCALER, scale=64.0, skipped=10, streak=10), False),
    ],
)
def test_a_scale_collapses_or_backs_off(scaler: ScalerFacts, collapsed: bool) -> None:
    assert (causes(within(COMPLETE, scalers=(scaler,))) == ["LOSS_SCALE_COLLAPSE"]) is collapsed


def test_a_schedule_ahead_of_the_scaler_is_a_warning() -> None:
    scaler = replace(SCALER, skipped=8, scheduler_stepped_on_skip=8)
    found = explain(within(COMPLETE, scalers=(scaler,)))
    assert [(f.cause, f.severity.value) for f in found] == [("SCALER_MISUSE", "warning")]


@pytest.mark.parametrize(
    ("load", "found"),
    [
        (LoadEvent("optimizer", HERE, 0, lr_before=1e-4, lr_after=0.1, lr_used=0.1), True),
        (LoadEvent("optimizer", HERE, 0, lr_before=1e-4, lr_after=0.1, lr_used=1e-4), False),
        (LoadEvent("optimizer", HERE, 0, lr_before=0.1, lr_after=0.1, lr_used=0.1), False),
        (LoadEvent("scheduler", HERE, 0, base_before=1e-4, base_after=0.1), True),
        (LoadEvent("scheduler", HERE, 0, base_before=0.1, base_after=0.1), False),
    ],
)
def test_a_rate_from_the_checkpoint(load: LoadEvent, found: bool) -> None:
    assert (causes(within(COMPLETE, loads=(load,))) == ["RESUME_LR"]) is found


def test_a_rate_from_the_checkpoint_that_no_update_has_used_is_not_blamed() -> None:
    load = LoadEvent("optimizer", HERE, 0, lr_before=1e-4, lr_after=0.1, lr_used=0.1)
    failed = FailedStep(0, "forward", "loss", RunRecord(loads=(load,)), births=(birth("log", "math"),))
    assert "RESUME_LR" not in causes(failed)
    assert "RESUME_LR" in causes(replace(failed, step=3))


@pytest.mark.parametrize(("file", "is_batch"), [("train.py", False), ("other.py", True)])
def test_what_came_in_with_a_checkpoint_is_no_batch(file: str, is_batch: bool) -> None:
    load = LoadEvent("module", Place(file, 7), 0, nonfinite=("w",))
    came_in = replace(
        birth("copy_", "outside"), birth=replace(birth("copy_", "outside").birth, nan=1, kind="nan")
    )
    found = causes(FailedStep(0, "forward", "loss", RunRecord(loads=(load,)), births=(came_in,)))
    assert found[0] == "CHECKPOINT_CORRUPT" and ("DATA_NONFINITE" in found) is is_batch


def test_under_a_schedule_a_decayed_rate_is_what_a_resume_should_bring() -> None:
    load = LoadEvent("optimizer", HERE, 0, lr_before=0.1, lr_after=0.01, lr_used=0.01)
    schedule = SchedulerFacts("StepLR", 0, 20, (0.01, 0.001), False, False)
    assert causes(within(COMPLETE, loads=(load,), schedulers=(schedule,))) == []


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (StateTensor("average", "ema.weight", 4, 0, 4), True),
        (StateTensor("optimizer state", "w.exp_avg_sq", 0, 4, 4), True),
        (StateTensor("buffer", "bn.running_mean", 4, 0, 4), True),
        (StateTensor("buffer", "bn.running_var", 0, 4, 4), True),
        (StateTensor("buffer", "attention.mask", 0, 15, 36), False),
    ],
)
def test_kept_state_that_is_bad_while_the_weights_are_fine(tensor: StateTensor, found: bool) -> None:
    assert (causes(replace(COMPLETE, state=(tensor,))) == ["STATE_POISONED"]) is found


@pytest.mark.parametrize("steps", [0, 7])
def test_weights_that_were_bad_before_any_update_have_no_good_copy(steps: int) -> None:
    optimizer = OptimizerFacts("SGD", 0.1, None, None, ("float32",), (), steps)
    failed = FailedStep(steps, "state", "loss", state=(StateTensor("parameter", "table.weight", 1, 0, 40),))
    (finding,) = explain(within(failed, optimizers=(optimizer,)))
    assert ("no update has been made yet" in finding.message) is (steps == 0)
    assert ("good copy" in (finding.fix or "")) is (steps > 0)


@pytest.mark.parametrize(
    ("audit", "severity"),
    [
        (UpdateAudit("bfloat16", 100, 100, 8, 8), "error"),
        (UpdateAudit("float16", 100, 95, 8, 2), "warning"),
        (UpdateAudit("bfloat16", 100, 60, 8, 1), None),
        (UpdateAudit("bfloat16", 100, 100, 1, 1), None),
        (UpdateAudit("float32", 100, 100, 8, 8), None),
    ],
)
def test_updates_lost_to_rounding(audit: UpdateAudit, severity: str | None) -> None:
    found = explain(within(COMPLETE, updates=(audit,)))
    assert [f.severity.value for f in found] == ([severity] if severity else [])
    assert all(f.cause == "BF16_PRECISION" for f in found)


def test_replicas_that_disagree() -> None:
    equal = (ReplicaFacts(0), ReplicaFacts(1))
    assert causes(within(COMPLETE, replicas=equal)) == []
    for other in (
        ReplicaFacts(1, equal=False, drift=0.1, place=HERE),
        ReplicaFacts(1, skipped=2),
    ):
        assert causes(within(COMPLETE, replicas=(equal[0], other))) == ["DIST_DESYNC"]
    apart_from_start = ReplicaFacts(1, started_equal=False, equal=False)
    assert causes(within(COMPLETE, replicas=(equal[0], apart_from_start))) == []
    scales = (ReplicaFacts(0, scale=1024.0), ReplicaFacts(1, scale=512.0))
    assert causes(within(COMPLETE, replicas=scales)) == ["DIST_DESYNC"]


def test_positions_that_fall_together() -> None:
    positions = RoundedIntegers(HERE, "bfloat16", 2048.0, 2048, 700)
    assert causes(within(COMPLETE, rounded=(positions,))) == ["BF16_PRECISION"]
    labels = replace(positions, numel=64)
    assert [f.severity.value for f in explain(within(COMPLETE, rounded=(labels,)))] == ["warning"] * (
        labels.distinct < labels.numel
    )


def test_gradients_that_vanish_behind_a_cleaned_value() -> None:
    cleaned = Producer("aten.nan_to_num.default", "torch.nan_to_num", "train.py", 9, None)
    trained = Operand(TensorSummary("output", (8,), "float32"), requires_grad=True)
    hidden = replace(birth("log", "finite->inf"), hidden_by=(cleaned,), output=trained)
    dead = (GradientFacts(True, False), GradientFacts(True, False))
    step = replace(COMPLETE, gradients=dead, benign=(hidden,))
    assert causes(step) == ["WHERE_UNSAFE_BRANCH"]
    alive = (dead[0], GradientFacts(False, False))
    assert causes(replace(step, gradients=alive)) == []
    assert causes(replace(step, benign=())) == []
    hinge = within(step, history=(StepRecord(99, 0.0, 0.0, 0.1),))
    assert causes(hinge) == []  # a loss of exactly 0 has no gradient to lose


def test_ranking_keeps_one_explanation_per_cause() -> None:
    def found(code: str, cause: str, depth: int, line: int) -> Finding:
        return Finding(code, "a-b", cause, Severity.ERROR, "m", "f", "train.py", line, depth=depth)

    several = [
        found("NUM001", "LOG_DOMAIN", 3, 3),
        found("NUM002", "LOG_DOMAIN", 1, 4),
        found("NUM003", "EXP_OVERFLOW", 2, 3),
    ]
    ordered = rank(several, one_per_cause=True)
    assert [(f.code, f.line) for f in ordered] == [("NUM002", 4), ("NUM003", 3)]
    assert len(rank([*several, several[0]], one_per_cause=False)) == 3


def test_the_more_specific_rule_goes_first() -> None:
    def found(code: str, cause: str) -> Finding:
        return Finding(code, "a-b", cause, Severity.ERROR, "m", "f", depth=0)

    several = [found("NUM025", "A"), found("RUN010", "B"), found("STA027", "C")]
    assert [f.code for f in rank(several, one_per_cause=True)] == ["STA027", "RUN010", "NUM025"]


@pytest.mark.parametrize("ratio", [3e3, 1e18, float("inf")])
def test_an_update_of_many_times_the_weights_is_named_before_what_came_of_it(ratio: float) -> None:
    operand = Operand(TensorSummary("self", (8,), "float32", 0.0, 1.0, zeros=1), requires_grad=True)
    born = replace(birth("log", "finite->inf"), operands=(operand,), facts={"boundary": 1, "outside": 0})
    moved = (StepRecord(0, 1.0, 1.0, 100.0, update_ratio=ratio), StepRecord(1, 1e9, 1e9, 100.0))
    step = FailedStep(2, "forward", "loss", RunRecord(history=moved), births=(born,))
    first = explain(step)[0]
    assert first.cause == "LR_DIVERGENCE"
    assert "learning rate 100" in first.message
    empty = replace(born, facts={"empty": True}, operands=())
    assert (
        causes(replace(step, births=(empty,)))[0] == "EMPTY_REDUCTION"
    )  # no learning rate empties a selection
    small = (StepRecord(0, 1.0, 1.0, 0.1, update_ratio=3.0),)
    assert causes(within(step, history=small)) == ["LOG_DOMAIN"]
    well = (moved[0], *(StepRecord(n, 1.0, 1.0, 100.0) for n in range(1, 9)))
    ends_well = ratio < 1e4  # more than that leaves nothing of the weights, whatever the loss says
    assert causes(within(COMPLETE, history=well)) == ([] if ends_well else ["LR_DIVERGENCE"])
