"""How the guard is called: guard.step(fn, *args), results with extras, loaders, own checkpoints, logging."""

from __future__ import annotations

import gc
import json
import logging
import operator
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trials.bits import differing

from guard.small_training import NAN, Training, assert_same, batches, spoiled
from stayfinite import Guard

DATA = batches(6)
LATE = re.compile(r"late[- ]bound|late binding|bound late|binds late", re.IGNORECASE)


# -- guard.step(fn, *args)


def test_arguments_go_to_the_function(tmp_path: Path) -> None:
    training = Training(dropout=0.2)
    guard = training.guard(tmp_path)
    seen: list[tuple[Any, ...]] = []

    def loss(x: Tensor, weight: float, *more: Any) -> Tensor:
        seen.append((x, weight, *more))
        return training.loss(x) * weight

    for x in DATA:
        assert guard.step(loss, x, 1.0, "more").applied
    assert [call[0] is x for call, x in zip(seen, DATA, strict=True)] == [True] * 6
    assert {call[1:] for call in seen} == {(1.0, "more")}
    assert_same(training.bits(), Training(dropout=0.2).train(DATA))


def test_one_argument_is_the_functions_not_the_batch(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    for x in DATA:
        assert guard.step(training.loss, x).applied
    assert_same(training.bits(), Training().train(DATA))


def test_batch_and_optimizer_are_keywords(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    for x in DATA:
        assert guard.step(training.loss, x, batch={"pixels": x}, optimizer=training.optimizer).applied
    result = guard.step(training.loss, spoiled(DATA[0]), batch={"pixels": spoiled(DATA[0])})
    assert "pixels" in json.dumps(result.incident.to_json() if result.incident else {})


def test_the_arguments_are_the_batch_for_the_diagnosis(tmp_path: Path) -> None:
    """What was wrong with the data is said without batch=...: the second argument holds the NaN."""
    training = Training()
    guard = training.guard(tmp_path)

    def loss(x: Tensor, weights: Tensor) -> Tensor:
        return (training.model(x).square() * weights).mean()

    good = torch.ones(6, 1)
    guard.step(loss, DATA[0], good)
    result = guard.step(loss, DATA[1], spoiled(good))
    assert result.applied is False and result.incident is not None
    text = json.dumps(result.incident.to_json())
    assert "[1] holds" in text, text
    assert "[0] holds" not in text


def test_accumulated_micro_batches_are_replayed_with_their_own_arguments(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path, accumulate=3)
    seen: list[Tensor] = []

    def loss(x: Tensor) -> Tensor:
        seen.append(x)
        return training.loss(x)

    data = [DATA[0], spoiled(DATA[1]), DATA[2]]
    results = [guard.step(loss, x) for x in data]
    assert results[-1].applied is False
    assert all(a is b for a, b in zip(seen[:3], data, strict=True))
    replayed = seen[3:]
    assert len(replayed) >= 2, "the step was followed once more"
    assert all(a is b for a, b in zip(replayed, data[: len(replayed)], strict=True))
    incident = results[-1].incident
    assert incident is not None and incident.birth is not None
    assert LATE.search(json.dumps(incident.to_json())) is None


def test_arguments_are_dropped_after_the_update(tmp_path: Path) -> None:
    """The guard does not keep a batch alive for longer than its update needs it."""
    training = Training()
    guard = training.guard(tmp_path)
    x = DATA[0].clone()
    watched = weakref.ref(x)
    guard.step(training.loss, x)
    guard.step(training.loss, DATA[1])
    del x
    gc.collect()
    assert watched() is None


def test_a_function_without_arguments_stays_valid(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    for x in DATA:
        assert guard.step(lambda x=x: training.loss(x)).applied
    assert_same(training.bits(), Training().train(DATA))


class Holder:
    x: Tensor


@pytest.mark.parametrize("how", ["closure", "attribute", "bound early"])
def test_late_binding_under_accumulation_is_detected(tmp_path: Path, how: str) -> None:
    """The first of two micro-batches is bad; when the step is followed once more, both functions see the second."""
    training = Training()
    guard = training.guard(tmp_path, accumulate=2)
    holder = Holder()
    result = None
    for x in [spoiled(DATA[0]), DATA[1]]:
        holder.x = x
        if how == "closure":
            result = guard.step(lambda: training.loss(x), batch=x)  # noqa: B023 - that is the point
        elif how == "attribute":
            result = guard.step(lambda: training.loss(holder.x), batch=x)
        else:
            result = guard.step(lambda x=x: training.loss(x), batch=x)
    assert result is not None and result.applied is False and result.incident is not None
    guard.close()
    text = json.dumps(result.incident.to_json()) + (tmp_path / "run.jsonl").read_text()
    assert bool(LATE.search(text)) is (how != "bound early"), text
    if how != "bound early":
        assert result.incident.birth is None, "a birth that was seen with another batch is not this step's"


# -- (loss, aux)


@pytest.mark.parametrize("named", [False, True])
def test_extras_of_the_step_function(tmp_path: Path, named: bool) -> None:
    training = Training()
    guard = training.guard(tmp_path)

    def loss(x: Tensor) -> tuple[Any, dict[str, Any]]:
        out = training.model(x)
        total = out.square().mean()
        return ({"mse": total} if named else total), {"out": out, "n": len(x)}

    for x in DATA:
        result = guard.step(lambda x=x: loss(x))
        assert result.applied and result.aux["n"] == 6 and result.aux["out"].shape == (6, 1)
        assert result.loss == pytest.approx(float(result.aux["out"].detach().square().mean()))
    assert_same(training.bits(), Training().train(DATA))
    bad = guard.step(lambda: loss(spoiled(DATA[0])))
    assert bad.applied is False and bool(torch.isnan(bad.aux["out"]).any())
    assert guard.step(lambda: training.loss(DATA[0])).aux is None


def test_extras_of_each_micro_batch(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path, accumulate=3)
    found = [guard.step(lambda i=i, x=x: (training.loss(x), i)).aux for i, x in enumerate(DATA)]
    assert found == [0, 1, 2, 3, 4, 5]


def test_extras_with_a_verdict_that_comes_later(tmp_path: Path) -> None:
    training = Training(lambda p: torch.optim.Adam(p, 0.01, fused=True))
    guard = training.guard(tmp_path, sync=False)
    assert [guard.step(lambda i=i, x=x: (training.loss(x), i)).aux for i, x in enumerate(DATA)] == list(
        range(6)
    )


# -- guard.watch(loader)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.cat(DATA)), 6)


def test_a_watched_loader_has_its_length_and_attributes(tmp_path: Path) -> None:
    guard, own = Training().guard(tmp_path), loader()
    watched = guard.watch(own)
    assert len(watched) == len(own) == 6
    assert operator.length_hint(watched) == 6
    assert watched.dataset is own.dataset and watched.batch_size == 6 and watched.sampler is own.sampler
    with pytest.raises(AttributeError, match="no_such_thing"):
        watched.no_such_thing  # noqa: B018
    assert bool(watched)


def test_a_loader_without_a_length(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path)

    def endless() -> Iterator[Tensor]:
        yield from DATA

    watched = guard.watch(endless())
    with pytest.raises(TypeError):
        len(watched)
    for x in watched:
        training.body(x)
    assert_same(training.bits(), Training().train(DATA))


@pytest.mark.parametrize("wrapper", ["plain", "enumerate", "zip", "tqdm-like", "iter", "two epochs"])
def test_what_people_wrap_around_loaders(tmp_path: Path, wrapper: str) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    watched = guard.watch(loader())
    if wrapper == "plain":
        for (x,) in watched:
            training.body(x)
    elif wrapper == "enumerate":
        for _, (x,) in enumerate(watched):
            training.body(x)
    elif wrapper == "zip":
        for (x,), _ in zip(watched, range(100), strict=False):
            training.body(x)
    elif wrapper == "tqdm-like":
        total = len(watched)
        for done, (x,) in enumerate(iter(watched)):
            assert done < total
            training.body(x)
    elif wrapper == "iter":
        batches_of = iter(watched)
        for _ in range(len(watched)):
            training.body(next(batches_of)[0])
        with pytest.raises(StopIteration):
            next(batches_of)
    else:
        for _ in range(2):
            for (x,) in watched:
                training.body(x)
    expected = DATA * 2 if wrapper == "two epochs" else DATA
    assert_same(training.bits(), Training().train(expected), generators=False)  # a DataLoader draws a seed
    assert guard.counters.applied == len(expected)


def test_zip_that_ends_early(tmp_path: Path) -> None:
    """zip has taken a batch that nobody trains on."""
    training = Training()
    guard = training.guard(tmp_path)
    for (x,), _ in zip(guard.watch(loader()), range(4), strict=False):
        training.body(x)
    assert_same(training.bits(), Training().train(DATA[:4]), generators=False)


@pytest.mark.parametrize("locate", [False, True])
def test_without_locating_a_body_sees_each_batch_once(tmp_path: Path, locate: bool) -> None:
    training = Training()
    guard = training.guard(tmp_path, locate=locate)
    seen: list[Tensor] = []
    data = [*DATA[:3], spoiled(DATA[3]), *DATA[3:]]
    for x in guard.watch(data):
        seen.append(x)
        training.body(x)
    assert_same(training.bits(), Training().train(DATA))
    if not locate:
        assert len(seen) == 7 and all(a is b for a, b in zip(seen, data, strict=True))


def test_without_locating_a_function_is_called_once(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path, locate=False)
    calls: list[int] = []
    for number, x in enumerate([*DATA[:3], spoiled(DATA[3]), *DATA[3:]]):

        def loss(number: int = number, x: Tensor = x) -> Tensor:
            calls.append(number)
            return training.loss(x)

        guard.step(loss)
    assert calls == list(range(7))


# -- checkpoints of one's own


class OwnCheckpoint:
    """A script that saves its parts itself, with the guard's beside them."""

    def __init__(self, folder: Path) -> None:
        self.training = Training(lambda p: torch.optim.Adam(p, 0.02), dropout=0.3)
        self.guard: Guard = self.training.guard(folder)
        self.loader = DataLoader(TensorDataset(torch.cat(DATA)), 4, shuffle=True)

    def go(self, epochs: int, stop: int | None = None) -> dict[str, Any]:
        while self.guard.epoch < epochs:
            for (x,) in self.guard.watch(self.loader):
                spoil = NAN if self.guard.step_count == 3 else 1.0
                self.training.optimizer.zero_grad()
                (self.training.loss(x) * spoil).backward()
                self.training.optimizer.step()
                self.training.advance()
                if stop is not None and self.guard.step_count == stop:
                    return {}
        own = {"steps": self.guard.step_count, "counters": self.guard.counters.to_dict()}
        return {**self.training.bits(), **own}

    def parts(self) -> dict[str, Any]:
        t = self.training
        return {"model": t.model, "optimizer": t.optimizer, "scheduler": t.scheduler, "average": t.average}

    def save(self, path: Path) -> None:
        parts = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save({**parts, "guard": self.guard.state_dict()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])
        self.guard.load_state_dict(saved["guard"])


@pytest.mark.parametrize("stop", [2, 4, 6, 8])
def test_a_checkpoint_of_ones_own_resumes_to_the_same_bits(tmp_path: Path, stop: int) -> None:
    """Step number, counters, place in the data and random state are the guard's; the rest the script saves."""
    expected = OwnCheckpoint(tmp_path / "straight").go(2)
    first = OwnCheckpoint(tmp_path / "first")
    first.go(2, stop)
    first.save(tmp_path / "own.pt")
    second = OwnCheckpoint(tmp_path / "second")
    second.load(tmp_path / "own.pt")
    assert second.guard.step_count == stop
    assert differing(second.go(2), expected) == []


def test_the_state_of_a_guard_is_plain_data_and_a_copy(tmp_path: Path) -> None:
    run = OwnCheckpoint(tmp_path)
    run.go(1)
    state = run.guard.state_dict()
    torch.save(state, tmp_path / "guard.pt")
    assert torch.load(tmp_path / "guard.pt", weights_only=True).keys() == state.keys()
    before = run.guard.step_count
    run.go(2)
    run.guard.load_state_dict(state)
    assert run.guard.step_count == before and run.guard.epoch == 1


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    run = OwnCheckpoint(tmp_path)
    run.go(1)
    before = run.guard.step_count
    with pytest.raises((RuntimeError, ValueError, KeyError), match="guard"):
        run.guard.load_state_dict({"weights": torch.ones(2)})
    assert run.guard.step_count == before


# -- logging


def test_what_is_printed_also_goes_through_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with caplog.at_level(logging.DEBUG, "stayfinite"):
        guard = Guard(model, optimizer, run_dir=tmp_path)
        guard.step(lambda: model(DATA[0]).square().mean())
        guard.step(lambda: model(spoiled(DATA[0])).square().mean())
        guard.close()
    printed = capsys.readouterr().err
    assert "the loss is nan" in printed
    ours = [record for record in caplog.records if record.name.split(".")[0] == "stayfinite"]
    refused = [record for record in ours if "the loss is nan" in record.getMessage()]
    assert refused and refused[0].levelno >= logging.WARNING


def test_a_healthy_run_logs_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "stayfinite"):
        training = Training()
        guard = training.guard(tmp_path, quiet=False)
        for x in DATA:
            guard.step(lambda x=x: training.loss(x))
        guard.close()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
