"""A rate or growth as the cause: the steps since the last good copy are made again, and what cures them is proved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard, Policy, RunStopped
from stayfinite.findings import Incident
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.past_steps import FURTHER, MOST_STEPS, PastSteps
from stayfinite.guarding.trajectory import Course, passes_again, still_grows
from stayfinite.sandbox.fork import obstacle
from stayfinite.watch.watcher import Call, Window

needs_fork = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def squared(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def outwards(model: nn.Module, batch: Tensor) -> Tensor:
    """What makes every block enlarge what it is given, in float16."""
    with torch.autocast("cpu", torch.float16):
        return -model(batch).abs().float().mean()  # type: ignore[no-any-return]


def first_failure(
    folder: Path,
    model: nn.Module,
    loss: Callable[[nn.Module, Tensor], Tensor],
    rate: float,
    clip: float | None = None,
    uneven: float = 0.0,
) -> tuple[Incident, bool]:
    """Train until a step is refused; whether the proof has left everything as it was. `uneven`: batches vary."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    policy = Policy(foresee="warn")  # else a failure that was foretold goes back, and the weights with it
    guard = Guard(model, optimizer, run_dir=folder, quiet=True, clip_norm=clip, policy=policy)
    torch.manual_seed(1)
    for _ in range(100):
        batch = torch.randn(16, 8) * (1 + uneven * torch.rand(1))
        before = [p.detach().clone() for p in model.parameters()]
        drawn = torch.get_rng_state()
        result = guard.step(loss, model, batch)
        if result.incident is not None:
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            return result.incident, same and torch.equal(drawn, torch.get_rng_state())
    raise AssertionError("nothing failed")


@needs_fork
def test_growth_is_bounded_and_a_wider_dtype_postpones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(8)], nn.Linear(8, 1))
    incident, same = first_failure(tmp_path, model, outwards, 0.5, clip=1.0)
    assert same and incident.blame == "state"
    tried = {one.remedy: one for one in incident.tried}
    assert incident.tried[0].remedy == "bounded-growth"
    assert (tried["bounded-growth"].verdict, tried["bounded-growth"].steps) == ("proved", 20)
    assert tried["bounded-growth"].distortion is not None and tried["bounded-growth"].distortion <= 0.01
    assert tried["clipping"].verdict == "failed" and "not finite either" in tried["clipping"].reason
    for wider in ("autocast-off", "autocast-bfloat16"):
        assert tried[wider].verdict == "postpones" and "outputs grow on" in tried[wider].reason


@pytest.mark.long
@needs_fork
def test_a_wider_dtype_postpones_where_the_batch_has_a_part_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has grown so far that the larger batches fail and others do not yet."""
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(8)], nn.Linear(8, 1))
    incident, same = first_failure(tmp_path, model, outwards, 0.1, clip=1.0, uneven=2.0)
    assert same and incident.blame == "both"
    tried = {one.remedy: one for one in incident.tried}
    assert incident.tried[0].remedy == "bounded-growth" and incident.tried[0].steps == 20
    for wider in ("autocast-off", "autocast-bfloat16"):
        assert tried[wider].verdict == "postpones", tried[wider]


@pytest.mark.long
@needs_fork
def test_going_back_at_a_lower_rate_is_tried_over_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate above what is stable: half of it is not, and that is shown on the steps that failed, not supposed."""
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    incident, same = first_failure(tmp_path, Scaled(), squared, 0.9)
    tried = {one.remedy: one for one in incident.tried}
    assert same and tried["rolled-back"].verdict == "proved", incident.tried
    assert tried["rolled-back"].steps == 20 and "0.5 times" in tried["rolled-back"].sentence


@needs_fork
def test_the_rate_that_an_absurd_update_asks_for_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(8, 1))
    incident, same = first_failure(tmp_path, model, squared, 1e9)
    tried = {one.remedy: one for one in incident.tried}
    assert same and incident.findings[0].code == "RUN010"
    assert incident.tried[0].remedy == "measured-rate" and incident.tried[0].verdict == "proved"
    assert incident.tried[0].steps == 20 and "in place of 1e+09" in incident.tried[0].sentence
    assert "bounded-growth" not in tried and not tried["lower-rate"].proved


@pytest.mark.long
@needs_fork
def test_the_steps_of_a_watched_loop_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own body, with its own update, its own counter and its own schedule."""
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    guard = Guard(
        model, optimizer, schedule, run_dir=tmp_path, quiet=True, policy=Policy(foresee="warn", stop_after=1)
    )
    batches = [torch.randn(16, 8) for _ in range(100)]
    numbers = []
    with pytest.raises(RunStopped):
        for number, batch in enumerate(guard.watch(batches)):
            numbers.append(number)
            optimizer.zero_grad()
            loss = squared(model, batch)
            loss.backward()
            optimizer.step()
            schedule.step()
    found = json.loads((guard.run_dir / "incidents" / "0001" / "incident.json").read_text())
    incident = Incident.from_json(found)
    tried = {one.remedy: one for one in incident.tried}
    assert numbers == list(range(len(numbers)))  # what a child did with them is lost
    assert tried["rolled-back"].verdict == "proved" and tried["rolled-back"].steps == 20, incident.tried
    assert tried["lower-rate"].verdict == "proved" and tried["lower-rate"].steps == 20


class Scaled(nn.Module):
    """Its loss has a curvature of about 1 in each direction, and values large enough to overflow soon."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            self.line.weight.fill_(1e16)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)  # type: ignore[no-any-return]


def attempt_of(batch: Any) -> Attempt:
    window = Window(batches=[batch], calls=[Call.of(squared, (None, batch))])
    made = object.__new__(Attempt)
    made.window, made.rates = window, [0.1]
    return made


def test_few_and_small_batches_are_held() -> None:
    past, first, second = PastSteps(), (1, 0), (2, 0)
    assert past.since(first) == [] and past.newest is None
    for _ in range(10):
        past.add(first, attempt_of(torch.zeros(4)), None)
    assert (
        len(past.since(first) or []) == 10 and past.since(second) == []
    )  # the copy was taken this very moment
    past.add(second, attempt_of(torch.ones(4)), None)
    assert len(past.since(second) or []) == 1
    assert len(past.latest()) == 11  # a few from before the copy are other batches to go on with
    for number in range(MOST_STEPS):
        past.add(second, attempt_of(torch.zeros(4)), None)
        assert len(past.latest()) == min(FURTHER, 12 + number)
    assert past.since(first) == []
    assert past.since(second) is None  # some of these steps are gone: the rest would be another training
    assert past.since((2, 1)) == []  # the run went back to that copy: nothing was applied since
    past.add((2, 1), attempt_of(torch.zeros(4)), None)
    past.add((2, 1), attempt_of(torch.zeros(20 << 20)), None)  # 80 MB alone: the newest stays, nothing else
    assert past.since((2, 1)) is None and past.newest is not None
    for stamp in ((3, 1), (4, 1)):
        past.add(stamp, attempt_of(torch.zeros(4, device="meta")), None)
        assert len(past.since(stamp) or []) == 1
    past.add((4, 1), attempt_of(torch.zeros(4, device="meta")), None)
    assert past.since((4, 1)) is None


@pytest.mark.parametrize(
    "inside", [lambda batch: batch, lambda batch: {"x": [batch]}], ids=["tensor", "nested"]
)
def test_a_batch_that_was_written_into_is_no_batch_of_the_past(inside: Callable[[Tensor], Any]) -> None:
    past, buffer = PastSteps(), torch.zeros(4)
    given = inside(buffer)
    for number in range(3):
        buffer.fill_(number)  # the loop's one buffer
        past.add((1, 0), attempt_of(given), None)
    assert len(past.latest()) == 1 and past.newest is not None  # the last was not written into yet
    buffer.fill_(9)
    assert past.since((1, 0)) is None and past.latest() == [] and past.newest is None
    with torch.inference_mode():
        past.add((2, 0), attempt_of(torch.zeros(4)), None)  # has no count of what was written
    assert len(past.since((2, 0)) or []) == 1


def closure_of(tensor: Tensor) -> Attempt:
    made = object.__new__(Attempt)
    made.window, made.rates = Window(batches=[None], calls=[Call.of(lambda: tensor.sum(), ())]), [0.1]
    return made


def test_what_closures_hold_is_counted() -> None:
    past, always = PastSteps(), torch.zeros(30 << 20)  # 120 MB that live anyway
    past.add((0, 0), closure_of(always), None)
    for _ in range(3):
        past.add((1, 0), closure_of(always), None)
    assert len(past.since((1, 0)) or []) == 3  # held by whoever else holds it
    past.add((1, 0), closure_of(torch.zeros(20 << 20)), None)
    assert past.since((1, 0)) is None
    past.add((2, 0), closure_of(torch.zeros(4)), None)
    past.add((2, 0), closure_of(torch.zeros(4, requires_grad=True) * 2), None)  # with its graph
    assert past.since((2, 0)) is None


def test_late_binding_is_noticed() -> None:
    past, batch = PastSteps(), torch.zeros(2)
    for number in range(3):
        batch = torch.full((2,), float(number))
        made = closure_of(batch)
        made.window.calls[0] = Call.of(lambda: batch.sum(), ())  # noqa: B023 - that is what is tested
        past.add((1, 0), made, None)
    assert past.since((1, 0)) is None  # called again, the first would compute the batch of the last
    assert len(past.latest()) < 3
    assert past.newest is not None


def test_steps_that_pass_a_limit_again_are_counted() -> None:
    alone = Course(made=4, sizes=(9e4, 6e4, 5e4, 6e4))  # the failing batch was the only large one
    again = Course(made=4, sizes=(9e4, 6e4, 7e4, 8e4))
    assert passes_again(alone, 65504.0) is None
    assert passes_again(again, 65504.0) == 2
    assert passes_again(Course(made=1, sizes=(9e4,)), 65504.0) is None  # nothing came after it


def test_growth_that_comes_to_a_rest_needed_no_more_than_room() -> None:
    led = Course(made=12, failed_at=12, sizes=(*(40 * 1.8**step for step in range(12)), 1e300))
    resting = Course(
        made=20, sizes=tuple(7e4 + 6e3 * step for step in range(20))
    )  # x 2.6, at a tenth of the pace
    going_on = Course(made=20, sizes=tuple(7e4 * 1.5**step for step in range(20)))
    assert still_grows(resting, led) is None
    assert still_grows(going_on, led) == (going_on.sizes[0], going_on.sizes[-1])
    young = Course(made=1, failed_at=1, sizes=(6e4, 1e300))  # nobody knows how fast it was
    assert still_grows(resting, young) is not None
    level = Course(made=20, sizes=(7e4,) * 20)
    assert still_grows(level, led) is None
