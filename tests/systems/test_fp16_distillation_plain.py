"""The distillation system: float16 AdamW fails in its first step, the usual fixes hide it, float32 weights train."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

import preloaded
from systems.first_nonfinite import first_bad_step
from systems.load_example import load_example

SEEDS = (0, 1, 2)
EXAMPLE = load_example("fp16_distillation")
Configure = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("teacher")


@pytest.fixture
def configure(cache: Path) -> Configure:
    """A config of the example with its teacher cached outside of the tree."""

    def configure(name: str, seed: int = 0) -> dict[str, Any]:
        config: dict[str, Any] = EXAMPLE.train.read_config(EXAMPLE.folder / name)
        return {**config, "seed": seed, "cache_dir": str(cache)}

    return configure


def all_finite(tensors: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def assert_fails_in_first_optimizer_step(config: dict[str, Any]) -> None:
    parts = EXAMPLE.train.build(config)
    batches = iter(parts.loader)
    records = []

    found = first_bad_step(
        parts.optimizer, lambda: records.append(EXAMPLE.train.train_step(parts, next(batches))), limit=2
    )

    assert found is not None
    step, birth = found
    assert step == 1
    assert (birth.op, birth.phase) == ("aten.addcdiv_.default", "optimizer")
    assert all(
        math.isfinite(value) for value in records[0].values()
    )  # loss, every term and the norm are fine
    assert all_finite(p.grad for p in parts.model.trainable() if p.grad is not None)
    assert not all_finite(parts.model.trainable())


ONE_SEED = [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])]


@pytest.mark.parametrize("seed", ONE_SEED)
def test_first_step_is_born_in_the_optimizer(configure: Configure, seed: int) -> None:
    assert_fails_in_first_optimizer_step(configure("config.yaml", seed))


@pytest.mark.parametrize("seed", ONE_SEED)
def test_the_safe_preset_fails_the_same_way(configure: Configure, seed: int) -> None:
    assert_fails_in_first_optimizer_step(configure("config.safe.yaml", seed))


def test_a_shared_tokenizer_fails_the_same_way(configure: Configure) -> None:
    assert_fails_in_first_optimizer_step({**configure("config.yaml"), "tokenizers": "shared"})


@pytest.mark.parametrize("rate", [1.0e-5, 5.0e-6])
def test_reported_rates_without_warm_up_fail_the_same_way(configure: Configure, rate: float) -> None:
    config = configure("config.yaml")
    config["accelerated"]["lr"] = rate
    parts = EXAMPLE.train.build(config)
    for group in parts.optimizer.param_groups:
        group["lr"] = rate
    EXAMPLE.train.train_step(parts, next(iter(parts.loader)))
    assert not all_finite(parts.model.trainable())


@pytest.mark.parametrize("seed", ONE_SEED)
def test_cured_training_lowers_perplexity(configure: Configure, seed: int) -> None:
    parts = EXAMPLE.train.build(configure("cured.yaml", seed))
    start = parts.evaluate()["perplexity"]
    batches = iter(parts.loader)
    records = [EXAMPLE.train.train_step(parts, next(batches)) for _ in range(60)]
    assert all(math.isfinite(record["loss"]) for record in records)
    assert parts.evaluate()["perplexity"] < 0.6 * start


def test_cured_training_with_a_shared_tokenizer_distils_logits(configure: Configure) -> None:
    parts = EXAMPLE.train.build({**configure("cured.yaml"), "tokenizers": "shared"})
    start = parts.evaluate()["perplexity"]
    batches = iter(parts.loader)
    records = [EXAMPLE.train.train_step(parts, next(batches)) for _ in range(40)]
    assert all(math.isfinite(record["loss"]) and record["kd"] > 0 for record in records)
    assert parts.evaluate()["perplexity"] < 0.8 * start


# Why it fails, in one step of one weight.


def adamw_step(dtype: torch.dtype, gradient: float, eps: float, lr: float = 1e-3) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    weight.grad = torch.full((4,), gradient, dtype=dtype)
    torch.optim.AdamW([weight], lr=lr, eps=eps, weight_decay=0.0).step()
    return weight.detach()


def test_eps_and_squared_gradient_are_zero_in_float16() -> None:
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    assert torch.tensor(1e-3 * 1e-3**2).half() == 0  # (1 - beta2) g^2 of an ordinary gradient
    assert bool(adamw_step(torch.float16, 1e-3, eps=1e-8).isinf().all())  # m / 0
    assert bool(adamw_step(torch.float16, 0.0, eps=1e-8).isnan().all())  # 0 / 0
    torch.testing.assert_close(adamw_step(torch.float32, 1e-3, eps=1e-8), torch.full((4,), -1e-3))


def test_wrong_fix_large_eps_is_finite_but_no_longer_adam() -> None:
    update = adamw_step(torch.float16, 1e-5, eps=1e-4)
    assert all_finite([update])
    assert bool((update.abs() < 0.2e-3).all())  # a fifth of the step that float32 takes


# The fixes of the report that do not help.


def test_wrong_fix_temperature_divides_logits() -> None:
    logits = torch.tensor([0.0, 8.0])
    assert (logits / 2.0).max() < (logits / 1.5).max() < logits.max()  # a lower one makes them larger


def test_wrong_fix_clamped_logits_bound_the_loss_from_below() -> None:
    """With 49152 tokens and logits in [-5, 5] the best cross entropy is 1.17 nats."""
    logits = torch.full((1, 49152), -100.0)
    logits[0, 7] = 100.0
    label = torch.tensor([7])
    assert F.cross_entropy(logits, label) == 0.0
    assert F.cross_entropy(logits.clamp(-5, 5), label).item() == pytest.approx(1.173, abs=1e-3)


def test_wrong_fix_clamped_loss_is_counted_as_success_and_teaches_nothing() -> None:
    logits = torch.zeros(3, 8)
    logits[:, 0] = 20.0
    logits.requires_grad_()
    loss = F.cross_entropy(logits, torch.tensor([1, 2, 3])).clamp(0, 6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 6.0  # finite: the log counts the batch as a success
    assert logits.grad is not None and not logits.grad.any()


def test_wrong_fix_norm_comparison_lets_nan_pass() -> None:
    norm = torch.tensor(float("nan"))
    assert not bool(norm > 2.0)
    assert not bool(torch.isfinite(norm))  # the question to ask


def test_wrong_fix_small_floor_before_log_does_not_exist_in_float16() -> None:
    probability = torch.zeros(1, dtype=torch.float16)
    assert bool(probability.clamp(min=1e-8).log().isinf())
    # The router's entropy: sure of one expert, 0 * log(0) in float16; log space keeps it at 0.
    router = torch.tensor([[[40.0, 0.0]]], dtype=torch.float16)
    assert bool(EXAMPLE.loss.router_entropy([router]).isnan())


def test_cured_router_entropy_of_a_sure_router_is_zero(configure: Configure) -> None:
    router = torch.tensor([[[40.0, 0.0]]], dtype=torch.float16)
    loss = EXAMPLE.train.build(configure("cured.yaml")).loss
    assert loss.router_entropy([router]).item() == pytest.approx(0.0, abs=1e-6)


def test_all_labels_ignored_is_nan_in_the_plain_loss_and_zero_in_the_cured_one(configure: Configure) -> None:
    logits = torch.randn(2, 3, 8)
    labels = torch.full((2, 3), EXAMPLE.data.IGNORED)
    assert bool(EXAMPLE.loss.cross_entropy(logits, labels).isnan())

    parts = EXAMPLE.train.build(configure("cured.yaml"))
    batch = next(iter(parts.loader))
    batch["labels"].fill_(EXAMPLE.data.IGNORED)
    loss = torch.stack(list(EXAMPLE.train.loss_components(parts, batch).values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert bool(torch.isfinite(loss))
    assert all_finite(p.grad for p in parts.model.trainable() if p.grad is not None)


def test_tokenizers_whose_offsets_never_meet_give_silent_zero_or_an_error(configure: Configure) -> None:
    """One tokenizer that counts the leading space and one that does not: no two ends are equal."""
    student, teacher = [0, 3, 6, 9], [1, 4, 7, 10]
    assert EXAMPLE.data.align_equal_ends(student, teacher) == [-1, -1, -1, -1]
    assert EXAMPLE.data.align_last_read(student, teacher) == [0, 0, 1, 2]

    projected = torch.randn(1, 4, 6, requires_grad=True)
    kd = EXAMPLE.loss.hidden_distillation(projected, torch.randn(1, 4, 6), torch.full((1, 4), -1))
    assert kd.item() == 0.0 and not kd.requires_grad  # nothing is distilled and nobody is told

    parts = EXAMPLE.train.build(configure("cured.yaml"))
    batch = next(iter(parts.loader))
    batch["aligned"].fill_(-1)
    with pytest.raises(ValueError, match="aligned"):
        EXAMPLE.train.loss_components(parts, batch)


def test_wrong_fix_tiny_rate_moves_only_half_of_the_float16_weights() -> None:
    torch.manual_seed(0)
    start = torch.randn(100_000) * 0.02
    moved = {}
    for dtype in (torch.float16, torch.float32):
        weight = torch.nn.Parameter(start.to(dtype))
        weight.grad = torch.sign(torch.randn_like(start)).to(dtype)
        before = weight.detach().clone()
        torch.optim.AdamW([weight], lr=5e-6, weight_decay=0.0).step()
        moved[dtype] = (weight != before).float().mean().item()
    assert 0.4 < moved[torch.float16] < 0.7
    assert moved[torch.float32] > 0.99


# The script around it.


def test_script_trains_on_after_nan_and_writes_valid_json(configure: Configure, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(configure("config.yaml")))
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
    assert math.isfinite(records[1]["loss"])  # the step that kills the run looks healthy
    assert records[2]["loss"] == "nan" and records[2]["perplexity"] == "nan"


def test_resume_gives_the_same_weights(configure: Configure) -> None:
    def run(parts: Any, until: int) -> None:
        batches = iter(parts.loader)
        while parts.loader.step < until:
            EXAMPLE.train.train_step(parts, next(batches))

    whole = EXAMPLE.train.build(configure("cured.yaml"))
    run(whole, 6)
    first = EXAMPLE.train.build(configure("cured.yaml"))
    run(first, 3)
    second = EXAMPLE.train.build(configure("cured.yaml"))
    second.load(first.state())
    run(second, 6)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_byte_pairs_give_the_text_back_with_its_offsets() -> None:
    texts = EXAMPLE.data.load_texts({"documents": 50})
    tokenizer = EXAMPLE.tokenizer.BytePairTokenizer("\n".join(texts), 100)
    assert tokenizer.vocab_size == 100
    names = {number: symbol for symbol, number in tokenizer.ids.items()}
    for text in texts[:10]:
        ids, ends = tokenizer.encode(text)
        assert "".join(names[number] for number in ids[1:]) == text
        assert ends[0] == 0 and ends[-1] == len(text) and bool((np.diff(ends) > 0).all())


def test_only_the_gates_of_the_teacher_are_trained(configure: Configure) -> None:
    parts = EXAMPLE.train.build(configure("cured.yaml"))
    trained = {name for name, p in parts.model.teacher.named_parameters() if p.requires_grad}
    assert trained == {f"blocks.{layer}.mlp.gate.weight" for layer in range(2)}
