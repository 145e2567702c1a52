"""The radio-map model by itself: how it fails, that the cured one learns, and why the reported fixes do not help."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from systems.load_example import load_example
from systems.run_to_failure import non_finite, run_to_failure

EXAMPLE = load_example("radiodiff")


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = EXAMPLE.train.read_config(EXAMPLE.folder / name)
    return config | changes


def train(parts: Any, steps: int) -> list[float]:
    torch.set_num_threads(1)
    batches = iter(parts.loader)
    return [EXAMPLE.train.train_step(parts, next(batches))["loss"] for _ in range(steps)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_overflows_float16_in_a_convolution_and_poisons_everything_in_that_step(seed: int) -> None:
    failure = run_to_failure(EXAMPLE, config_of("config.yaml", seed=seed), limit=80)
    assert failure is not None and failure.birth is not None
    assert 5 <= failure.step <= 80
    assert failure.birth.phase == "forward"
    assert "convolution" in failure.birth.op
    assert not non_finite(failure.before)
    assert non_finite(failure.parts.model.state_dict())
    assert non_finite(failure.parts.ema.state_dict())

    # The same step in float32 is finite: nothing but the range of float16 was missing.
    failure.parts.model.load_state_dict(failure.before)
    failure.parts.config["amp"] = False
    components = EXAMPLE.train.loss_components(failure.parts, failure.batch)
    assert all(bool(torch.isfinite(value)) for value in components.values())


def test_effective_precision_is_not_the_configured_one() -> None:
    """The launcher says bf16, fp16 is off, and yet the forward pass is float16 without a scaler."""
    parts = EXAMPLE.train.build(config_of("config.yaml"))
    assert parts.config["mixed_precision"] == "bf16"
    assert parts.config["fp16"] is False
    seen: list[torch.dtype] = []
    parts.model.stem.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    EXAMPLE.train.loss_components(parts, next(iter(parts.loader)))
    assert seen == [torch.float16]
    assert not parts.scaler.is_enabled()

    cured = EXAMPLE.train.build(config_of("cured.yaml"))
    cured.model.stem.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    EXAMPLE.train.loss_components(cured, next(iter(cured.loader)))
    assert seen[-1] == torch.bfloat16


def test_bfloat16_and_float32_survive_with_the_same_net_and_rate() -> None:
    for precision in ("bf16", "no"):
        parts = EXAMPLE.train.build(config_of("config.yaml", seed=2))
        parts.config |= {
            "stable": True,
            "mixed_precision": precision,
        }  # the net is built: this is the autocast alone
        assert all(math.isfinite(loss) for loss in train(parts, 40))


def test_float16_with_a_scaler_skips_the_step_that_fails() -> None:
    parts = EXAMPLE.train.build(config_of("config.yaml", seed=2, fp16=True))
    losses = train(parts, 40)
    assert any(not math.isfinite(loss) for loss in losses)
    assert not non_finite(parts.model.state_dict())
    assert not non_finite(parts.ema.state_dict())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cured_model_learns_and_beats_the_safe_preset(seed: int) -> None:
    """The preset is as reported, with its own rate."""
    parts = EXAMPLE.train.build(config_of("cured.yaml", seed=seed, steps=100))
    start = parts.evaluate()["nmse"]
    train(parts, 100)
    assert not non_finite(parts.model.state_dict())
    cured = parts.evaluate()["nmse"]
    assert cured < 0.5 * start

    safe = EXAMPLE.train.build(config_of("config.safe.yaml", seed=seed, steps=100))
    train(safe, 100)
    assert cured < 0.5 * safe.evaluate()["nmse"]


def test_standardised_filters_enlarge_by_the_root_of_the_fan_in() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 32, 16, 16)
    with torch.no_grad():
        plain = EXAMPLE.model.WeightStandardizedConv2d(32, 32, 3, padding=1, bias=False)(x).std().item()
        cured = EXAMPLE.model.ScaledWeightStandardizedConv2d(32, 32, 3, padding=1, bias=False)(x).std().item()
    assert plain == pytest.approx(math.sqrt(9 * 32), rel=0.1)
    assert cured == pytest.approx(1.0, rel=0.1)


def test_nan_to_num_shows_a_finite_loss_for_a_dead_model() -> None:
    parts = EXAMPLE.train.build(config_of("config.yaml", amp=False))
    with torch.no_grad():
        for parameter in parts.model.parameters():
            parameter.fill_(math.nan)
    batch = next(iter(parts.loader))
    x0 = parts.vae.encode(batch.maps)
    c, noise = parts.model(EXAMPLE.loss.add_noise(x0, batch.noise, batch.time), batch.time, batch.condition)
    shown = parts.loss(torch.nan_to_num(c), torch.nan_to_num(noise), x0, batch.noise, batch.time)
    assert all(0.5 < value.item() < 5 for value in shown.values())
    gradients = torch.autograd.grad(sum(shown.values()), [c, noise])
    assert all(gradient.abs().max().item() == 0 for gradient in gradients)


def test_weights_of_the_loss_never_reach_the_clamp() -> None:
    time = torch.linspace(1e-4, 1, 1000)
    largest = max((2 * torch.exp(1 - time)).max().item(), torch.exp(time.sqrt()).max().item())
    assert largest == pytest.approx(2 * math.e, rel=1e-3)
    assert largest < 100


def test_lower_rate_in_the_config_is_lost_on_resume() -> None:
    old = EXAMPLE.train.build(config_of("config.yaml", warmup=0))
    new = EXAMPLE.train.build(config_of("config.yaml", warmup=0, lr=1.0e-5))
    new.load(old.state())
    record = EXAMPLE.train.train_step(new, next(iter(new.loader)))
    assert record["lr"] == pytest.approx(old.config["lr"])


def test_min_lr_is_a_factor() -> None:
    parts = EXAMPLE.train.build(config_of("config.yaml", warmup=0, steps=2))
    train(parts, 3)
    floor = parts.config["min_lr"]
    assert parts.scheduler.get_last_lr()[0] == pytest.approx(floor * parts.config["lr"])
    assert parts.scheduler.get_last_lr()[0] != pytest.approx(floor)


def test_loss_replaced_by_zeros_has_nothing_to_go_back_through() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.zeros(()).backward()  # type: ignore[no-untyped-call,unused-ignore]


def test_autoencoder_gives_the_maps_back() -> None:
    parts = EXAMPLE.train.build(config_of("config.yaml"))
    maps = next(iter(parts.loader)).maps
    latent = parts.vae.encode(maps)
    assert EXAMPLE.loss.nmse(parts.vae.decode(latent), maps) < 0.1
    assert all(not parameter.requires_grad for parameter in parts.vae.parameters())


def test_autoencoder_is_read_from_a_file(tmp_path: Path) -> None:
    parts = EXAMPLE.train.build(config_of("config.yaml"))
    file = tmp_path / "vae.pt"
    torch.save({name: 2 * value for name, value in parts.vae.state_dict().items()}, file)
    loaded = EXAMPLE.train.build(config_of("config.yaml", vae_file=str(file)))
    assert torch.equal(loaded.vae.encoder.weight, 2 * parts.vae.encoder.weight)


def test_main_resumes_where_it_stopped(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    text = (EXAMPLE.folder / "cured.yaml").read_text()
    config.write_text(text.replace("evaluate_every: 50", "evaluate_every: 2"))
    whole = EXAMPLE.train.main(["--config", str(config), "--steps", "4", "--out", str(tmp_path / "whole")])
    EXAMPLE.train.main(["--config", str(config), "--steps", "2", "--out", str(tmp_path / "first")])
    checkpoint = tmp_path / "first" / "step_000002.pt"
    rest = EXAMPLE.train.main(
        [
            "--config",
            str(config),
            "--steps",
            "4",
            "--out",
            str(tmp_path / "rest"),
            "--resume",
            str(checkpoint),
        ]
    )
    assert rest["nmse"] == whole["nmse"]
    rows = [json.loads(line) for line in (tmp_path / "rest" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 3, 4]


def test_ema_takes_a_nan_in_and_keeps_it() -> None:
    layer = nn.Linear(2, 2)
    ema = EXAMPLE.train.EMA(layer, 0.999)
    good = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.fill_(math.nan)
    ema.update(layer)
    with torch.no_grad():
        layer.weight.copy_(good)
    for _ in range(10):
        ema.update(layer)
    assert non_finite(ema.state_dict())
