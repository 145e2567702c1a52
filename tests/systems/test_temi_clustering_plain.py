"""The clustering system: it fails in the backward of pow, the usual fixes do not help, the log-space form trains."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import preloaded
from systems.first_nonfinite import first_bad_step
from systems.load_example import load_example

SEEDS = (0, 1, 2)
EXAMPLE = load_example("temi_clustering")
Configure = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture
def configure(cache: Path) -> Configure:
    """A config of the example with its embeddings cached outside of the tree."""

    def configure(name: str, seed: int) -> dict[str, Any]:
        config: dict[str, Any] = EXAMPLE.train.read_config(EXAMPLE.folder / name)
        return {**config, "seed": seed, "cache_dir": str(cache)}

    return configure


def all_finite(tensors: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


@pytest.mark.parametrize("seed", SEEDS)
def test_first_step_is_born_in_the_backward_of_pow_at_rate_zero(configure: Configure, seed: int) -> None:
    parts = EXAMPLE.train.build(configure("config.yaml", seed))
    batches = iter(parts.loader)
    records = []

    found = first_bad_step(
        parts.optimizer, lambda: records.append(EXAMPLE.train.train_step(parts, next(batches))), limit=3
    )

    assert found is not None
    step, birth = found
    assert step == 1
    assert (birth.op, birth.phase, birth.node) == ("aten.pow.Tensor_Scalar", "backward", "PowBackward0")
    assert np.isfinite(records[0]["loss"])  # the loss of this step says nothing
    assert not np.isfinite(records[0]["grad_norm"])
    assert records[0]["lr"] == 0.0
    # The rate is 0, yet AdamW has spoiled the student and the EMA the teacher.
    assert not all_finite(parts.model.parameters())
    assert not all_finite(parts.ema.parameters())


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_half_the_init_std_only_delays_the_failure(configure: Configure, seed: int) -> None:
    parts = EXAMPLE.train.build(configure("config.late.yaml", seed))
    for step, batch in enumerate(parts.loader, start=1):
        record = EXAMPLE.train.train_step(parts, batch)
        if not np.isfinite(record["grad_norm"]) or step == 100:
            break

    assert 40 <= step <= 90
    assert np.isfinite(record["loss"])
    assert not np.isfinite(record["grad_norm"])


def test_the_late_failure_is_born_in_the_backward_of_pow_too(configure: Configure) -> None:
    parts = EXAMPLE.train.build(configure("config.late.yaml", 0))
    batches = iter(parts.loader)
    for _ in range(55):
        EXAMPLE.train.train_step(parts, next(batches))
    assert all_finite(parts.model.parameters())

    found = first_bad_step(parts.optimizer, lambda: EXAMPLE.train.train_step(parts, next(batches)), limit=35)

    assert found is not None
    assert (found[1].op, found[1].phase) == ("aten.pow.Tensor_Scalar", "backward")


def test_the_safe_preset_fails_at_the_first_step_of_a_seed(configure: Configure) -> None:
    parts = EXAMPLE.train.build(configure("config.safe.yaml", 2))
    batches = iter(parts.loader)

    found = first_bad_step(parts.optimizer, lambda: EXAMPLE.train.train_step(parts, next(batches)), limit=1)

    assert found is not None
    assert (found[1].op, found[1].phase) == ("aten.pow.Tensor_Scalar", "backward")


@pytest.mark.parametrize("seed", SEEDS)
def test_cured_training_improves_the_clustering_and_beats_the_safe_preset(
    configure: Configure, seed: int
) -> None:
    parts = EXAMPLE.train.build(configure("cured.yaml", seed))
    start = parts.evaluate()
    batches = iter(parts.loader)
    records = [EXAMPLE.train.train_step(parts, next(batches)) for _ in range(100)]
    end = parts.evaluate()

    assert all(np.isfinite(record["loss"]) and np.isfinite(record["grad_norm"]) for record in records)
    assert end["nmi"] > start["nmi"] + 0.2
    assert end["accuracy"] > start["accuracy"] + 0.2

    safe = EXAMPLE.train.build(configure("config.safe.yaml", seed))
    for _, batch in zip(range(100), safe.loader, strict=False):
        EXAMPLE.train.train_step(safe, batch)
    assert end["nmi"] > safe.evaluate()["nmi"] + 0.05


def test_cured_head_survives_inputs_that_break_the_plain_one(configure: Configure) -> None:
    """Embeddings a hundred times longer, one of them zero: finite loss and gradients."""
    parts = EXAMPLE.train.build(configure("cured.yaml", 0))
    batch = next(iter(parts.loader))
    batch["x"] = batch["x"] * 100
    batch["x"][0] = 0.0

    loss = torch.stack(list(EXAMPLE.train.loss_components(parts, batch).values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]

    assert bool(torch.isfinite(loss))
    assert all_finite(p.grad for p in parts.model.parameters())


# The fixes of the report that do not help.


def test_wrong_fix_lower_rate(configure: Configure) -> None:
    config = configure("config.yaml", 0)
    config["accelerated"]["lr"] = 1e-5
    parts = EXAMPLE.train.build(config)
    EXAMPLE.train.train_step(parts, next(iter(parts.loader)))
    assert not all_finite(parts.model.parameters())


def confident_pair() -> tuple[Tensor, Tensor]:
    """Student and teacher logits of one sample, each sure of another cluster."""
    student, teacher = torch.zeros(1, 10), torch.zeros(1, 10)
    student[0, 0], teacher[0, 1] = 60.0, 60.0
    return student.requires_grad_(), teacher


def test_wrong_fix_clamp_gives_a_disagreeing_sample_no_gradient() -> None:
    student, teacher = confident_pair()
    product = (student.softmax(-1) * teacher.softmax(-1)).clamp(min=1e-8)
    loss = -torch.log((product**0.6 / 0.1).sum(-1)).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert bool(torch.isfinite(loss))
    assert student.grad is not None and not student.grad.any()  # finite, and the sample that matters is dead

    student, teacher = confident_pair()
    settings = EXAMPLE.loss.Settings(1, 10, 0.6, 1.0, (1.0, 1.0), 1, 0.9)
    EXAMPLE.loss.LogSpaceTemiLoss(settings)(student[None], teacher[None], 0).sum().backward()
    assert student.grad is not None and bool(torch.isfinite(student.grad).all())
    assert student.grad[0, 1] < -0.1  # towards the teacher's cluster


def test_wrong_fix_skipping_skips_everything_and_moves_the_marginal(configure: Configure) -> None:
    parts = EXAMPLE.train.build(configure("config.yaml", 0))
    weights = [p.detach().clone() for p in parts.model.parameters()]
    marginal = parts.loss.marginal.clone()
    applied_losses = []
    for step, batch in enumerate(parts.loader, start=1):
        parts.optimizer.zero_grad()
        loss = torch.stack(list(EXAMPLE.train.loss_components(parts, batch).values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(parts.model.parameters(), 3.0)
        if torch.isfinite(norm):
            parts.optimizer.step()
            applied_losses.append(float(loss))
        if step == 10:
            break

    average = sum(applied_losses) / max(1, len(applied_losses))
    assert applied_losses == [] and average == 0.0  # what the report's log showed as a good epoch
    assert all(torch.equal(a, b) for a, b in zip(weights, parts.model.parameters(), strict=True))
    assert not torch.equal(marginal, parts.loss.marginal)  # the refused steps left a trace all the same


def test_heads_that_never_agree_break_the_plain_weights_only() -> None:
    """Zero agreement: 0 / 0 in the plain normalisation, equal weights in the cured one."""
    logits = torch.full((2, 4, 10), -200.0)
    logits[0, :, 0], logits[1, :, 1] = 200.0, 200.0
    settings = EXAMPLE.loss.Settings(2, 10, 0.6, 1.0, (1.0, 1.0), 1, 0.9)
    assert bool(EXAMPLE.loss.TemiLoss(settings)(logits, logits, 0).isnan().all())
    assert bool(torch.isfinite(EXAMPLE.loss.LogSpaceTemiLoss(settings)(logits, logits, 0)).all())


def test_log_space_loss_equals_the_plain_one_where_nothing_underflows() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 8, 10), torch.randn(4, 8, 10)
    settings = EXAMPLE.loss.Settings(4, 10, 0.6, 1.0, (1.0, 1.0), 1, 0.9)
    plain, stable = EXAMPLE.loss.TemiLoss(settings), EXAMPLE.loss.LogSpaceTemiLoss(settings)
    for _ in range(3):
        torch.testing.assert_close(plain(student, teacher, 0), stable(student, teacher, 0))
    torch.testing.assert_close(plain.marginal, stable.log_marginal.exp())


# The script around it.


def test_script_trains_on_after_nan_and_writes_valid_json(configure: Configure, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(configure("config.yaml", 0)))
    script = EXAMPLE.folder / "train.py"
    command = [sys.executable, str(script), "--config", str(config), "--steps", "2", "--out", "run"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = preloaded.run(command, cwd=tmp_path, env=one_thread)
    assert done.returncode == 0, done.stderr

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not valid JSON")

    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[1]["grad_norm"] == "nan" and records[2]["loss"] == "nan"


def test_resume_gives_the_same_weights(configure: Configure) -> None:
    def run(parts: Any, until: int) -> None:
        batches = iter(parts.loader)
        while parts.loader.step < until:
            EXAMPLE.train.train_step(parts, next(batches))

    whole = EXAMPLE.train.build(configure("cured.yaml", 0))
    run(whole, 24)
    first = EXAMPLE.train.build(configure("cured.yaml", 0))
    run(first, 12)
    second = EXAMPLE.train.build(configure("cured.yaml", 0))
    second.load(first.state())
    run(second, 24)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(whole.loss.log_marginal, second.loss.log_marginal)


def test_backbone_embeddings_are_cached_and_recomputed_on_demand(tmp_path: Path) -> None:
    """The hub loader with a local hub repository in the place of DINOv2."""
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "hubconf.py").write_text(
        "import torch\n"
        "dependencies = ['torch']\n"
        "def tiny():\n"
        "    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())\n"
    )
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(5))
    settings = {
        "source": "dinov2",
        "hub_repo": str(hub),
        "hub_model": "tiny",
        "hub_source": "local",
        "images": str(tmp_path / "images.npz"),
        "image_size": 28,
    }
    load = EXAMPLE.data.load_embeddings

    first, labels = load(settings, tmp_path / "cache")
    assert first.shape == (5, 12) and labels.tolist() == [0, 1, 2, 3, 4]
    np.savez(tmp_path / "images.npz", images=255 - images, labels=np.arange(5))
    assert torch.equal(load(settings, tmp_path / "cache")[0], first)  # from the cache
    assert not torch.equal(load(settings, tmp_path / "cache", recompute=True)[0], first)


def test_best_assignment_is_the_best_of_all_permutations() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        table = rng.integers(0, 10, (5, 5)).astype(float)
        best = max(sum(table[i, p[i]] for i in range(5)) for p in permutations(range(5)))
        assert table[np.arange(5), EXAMPLE.metrics.best_assignment(table)].sum() == best


def test_metrics_of_perfect_and_of_collapsed_clusters() -> None:
    labels = torch.arange(20) % 4
    renamed = (labels + 1) % 4
    assert EXAMPLE.metrics.nmi(renamed, labels) == pytest.approx(1.0)
    assert EXAMPLE.metrics.accuracy(renamed, labels) == 1.0
    assert EXAMPLE.metrics.nmi(torch.zeros(20, dtype=torch.long), labels) == 0.0
    assert EXAMPLE.metrics.accuracy(torch.zeros(20, dtype=torch.long), labels) == 0.25
