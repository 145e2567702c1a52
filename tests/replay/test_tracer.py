"""The tracer on single steps: where a value is born, what it says about it, and that it changes nothing."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.replay import Tracer, op_journal


def line_of(text: str) -> int:
    """The line of this file that ends with this text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(text))


def first(step: FailedStep | None) -> TracedBirth:
    assert step is not None and step.birth is not None
    return step.birth


@pytest.fixture
def trace() -> Tracer:
    torch.manual_seed(0)
    return Tracer()


def test_a_healthy_step_has_no_failure(trace: Tracer) -> None:
    net = nn.Linear(4, 2)
    opt = torch.optim.AdamW(net.parameters())
    with trace:
        loss = net(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        opt.step()
    assert trace.failure(loss) is None
    assert trace.failure() is None
    assert not trace.follower.trouble


def test_forward_birth_with_its_numbers(trace: Tracer) -> None:
    net = nn.Linear(4, 4)
    with trace:
        p = torch.relu(net(torch.randn(8, 4)))
        loss = torch.log(p).mean()  # log of zeros
        loss.backward()
    birth = first(trace.failure(loss))
    assert (birth.op, birth.phase, birth.transition) == ("log", "forward", "finite->inf")
    assert (birth.birth.file, birth.birth.line) == (__file__, line_of("# log of zeros"))
    assert birth.birth.call == "torch.log"
    zeros = int((p == 0).sum())
    assert zeros > 0 and birth.birth.inf == zeros and birth.facts["boundary"] == zeros
    operand = birth.operand("self")
    assert operand is not None and operand.summary.zeros == zeros and operand.made_by("relu") is not None


def test_backward_birth_is_shown_at_the_forward_line(trace: Tracer) -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with trace:
        y = (x * 1.0).sqrt()  # root of zero
        (y * torch.tensor([0.0, 1.0])).sum().backward()
    step = trace.failure()
    birth = first(step)
    assert step is not None and step.trigger == "gradient"
    assert (birth.phase, birth.node, birth.forward_name) == ("backward", "SqrtBackward0", "sqrt")
    assert birth.birth.line == line_of("# root of zero")
    saved = birth.saved_tensor("result")
    assert saved is not None and saved.summary.zeros == 1


def test_birth_in_the_optimizer(trace: Tracer) -> None:
    net = nn.Linear(4, 4).half()
    opt = torch.optim.Adam(net.parameters(), 1e-3, foreach=True)
    (net(torch.randn(2, 4).half() * 1e-3).float().sum() * 1e-4).backward()
    with trace:
        opt.step()  # half Adam
    step = trace.failure()
    birth = first(step)
    assert (birth.op, birth.phase, birth.birth.line) == ("addcdiv", "optimizer", line_of("# half Adam"))
    assert birth.facts["denominator_zeros"]
    assert step is not None and step.sink is not None and step.sink.name in ("weight", "bias")


def test_a_mask_is_benign_until_a_row_has_nothing_left(trace: Tracer) -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[:, 2:] = True
    with trace:
        fine = scores.masked_fill(mask, float("-inf")).softmax(-1).pow(2).sum()
        fine.backward()
        assert trace.failure() is None
        mask[1] = True
        broken = scores.masked_fill(mask, float("-inf")).softmax(-1).sum()  # a row without a key
    birth = first(trace.failure(broken))
    assert (birth.op, birth.transition) == ("softmax", "inf->nan")
    assert birth.facts["fully_masked_rows"] == 1
    assert birth.birth.line == line_of("# a row without a key")


def test_a_bad_value_through_views_and_in_place_writes(trace: Tracer) -> None:
    table = torch.ones(4, 3)
    with trace:
        table[2, :2] = torch.zeros(2) / torch.zeros(2)  # written into a view
        table[0] = 5.0
        healthy = table[:2].sum()
        loss = table.t().reshape(-1).sum()
    assert trace.failure(healthy) is None
    birth = first(trace.failure(loss))
    assert (birth.op, birth.birth.line) == ("div", line_of("# written into a view"))
    assert birth.facts["zero_over_zero"] == 2


def test_a_value_that_something_hides_is_remembered_as_hidden(trace: Tracer) -> None:
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    with trace:
        y = torch.where(x > 0, torch.sqrt(x), torch.zeros(2))  # hidden branch
        y.sum().backward()
    birth = first(trace.failure())
    assert (birth.op, birth.phase, birth.birth.line) == ("sqrt", "forward", line_of("# hidden branch"))
    assert [producer.name for producer in birth.hidden_by] == ["where"]


def test_an_enormous_gradient_is_a_birth_of_its_own(trace: Tracer) -> None:
    h = torch.zeros(2, 4, requires_grad=True)
    with trace:
        F.normalize(h, dim=-1).sum().backward()  # zero vectors
    step = trace.failure()
    birth = first(step)
    assert step is not None and step.trigger == "spike"
    assert (birth.transition, birth.birth.line) == ("amplified", line_of("# zero vectors"))


def test_module_path_samples_and_batch_origin(trace: Tracer) -> None:
    class Ratio(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.sum(-1, keepdim=True)

    net = nn.Sequential(nn.Identity(), nn.Sequential(Ratio(), nn.Linear(3, 1)))
    batch = torch.rand(64, 3)
    batch[17] = 0.0
    with trace:
        trace.note_batch(batch)
        loss = net(batch).mean()
    birth = first(trace.failure(loss))
    assert birth.birth.module == "Sequential.1.0"
    assert birth.birth.samples == (17,)
    operand = birth.operand("self")
    assert operand is not None and operand.origin == "batch"


def test_a_bad_batch_is_named_as_data(trace: Tracer) -> None:
    batch = torch.ones(4, 2)
    batch[3, 1] = float("nan")
    with trace:
        trace.note_batch(batch)
        loss = nn.Linear(2, 1)(batch).sum()
    birth = first(trace.failure(loss))
    assert (birth.phase, birth.transition) == ("data", "outside")
    assert birth.birth.samples == (3,)


@pytest.mark.parametrize(
    ("given", "rows"),
    [((4, 3), 80), ((3,), 81), ((20, 3), 80)],  # a rollout; one observation at a time; anchors of one image
)
def test_rows_that_are_a_multiple_of_a_batch_are_no_samples(
    trace: Tracer, given: tuple[int, ...], rows: int
) -> None:
    returns = torch.ones(rows)
    returns[7] = -1.0
    with trace:
        net = nn.Linear(3, 1)
        out = net(torch.ones(given)).mean()
        loss = out * returns.log().mean()
    assert first(trace.failure(loss)).birth.samples == ()


def test_a_function_has_its_own_name_and_not_that_of_an_equal_one(trace: Tracer) -> None:
    with trace:
        loss = torch.mm(torch.full((2, 2), 1e30), torch.full((2, 2), 1e30)).sum()
    assert first(trace.failure(loss)).birth.call == "torch.mm"
    with trace:
        loss = F.conv1d(torch.full((1, 1, 2), 1e30), torch.full((1, 1, 2), 1e30)).sum()
    assert first(trace.failure(loss)).birth.call == "F.conv1d"


def test_rows_of_a_moment_are_no_samples(trace: Tracer) -> None:
    """The weight has twice as many rows as the batch has samples."""
    net = nn.Linear(2, 8)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for bad in (False, True):
        if bad:
            optimizer.state[net.weight]["exp_avg"][0, 0] = float("nan")
            trace.start()
        batch = torch.ones(4, 2)
        if bad:
            trace.note_batch(batch)
        net(batch).sum().backward()
        optimizer.step()
    trace.stop()
    birth = first(trace.failure())
    assert (birth.phase, birth.birth.nan, birth.birth.samples) == ("optimizer", 1, ())


def test_channels_of_running_statistics_are_no_samples(trace: Tracer) -> None:
    net = nn.BatchNorm1d(8)
    batch = torch.randn(4, 8) * 1e25
    with trace:
        trace.note_batch(batch)
        net(batch)
    birth = first(trace.failure())
    assert birth.op == "native_batch_norm" and birth.birth.inf == 8
    assert birth.birth.samples == ()


def test_a_bad_parameter_is_named(trace: Tracer) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        net[1].bias.fill_(float("nan"))
    with trace:
        loss = net(torch.ones(1, 2)).sum()
    birth = first(trace.failure(loss))
    assert birth.output is not None
    assert (birth.phase, birth.output.origin, birth.output.name) == ("state", "parameter", "1.bias")


def test_float16_overflow_has_a_float32_verdict(trace: Tracer) -> None:
    with trace:
        x = torch.full((4,), 300.0, dtype=torch.float16)
        out = x * x
    birth = first(trace.failure(out, "result"))
    assert birth.float32 is not None and birth.float32.finite and birth.float32.absmax == 90000.0


def test_birth_inside_a_checkpoint(trace: Tracer) -> None:
    lin = nn.Linear(4, 4)

    def block(x: Tensor) -> Tensor:
        return torch.log(torch.relu(lin(x)))  # inside a checkpoint

    with trace:
        loss: Tensor = checkpoint(block, torch.randn(3, 4), use_reentrant=False).sum()  # type: ignore[assignment]
        loss.backward()
    assert first(trace.failure(loss)).birth.line == line_of("# inside a checkpoint")
    assert not trace.follower.trouble


def test_birth_in_the_backward_of_a_custom_function(trace: Tracer) -> None:
    class Inverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad / x  # custom backward

    x = torch.zeros(3, requires_grad=True)
    with trace:
        Inverse.apply(x).sum().backward()
    birth = first(trace.failure())
    assert (birth.phase, birth.birth.line) == ("backward", line_of("# custom backward"))


def test_compiled_code_is_followed_eagerly(trace: Tracer) -> None:
    @torch.compile(backend="eager")
    def loss_of(x: Tensor) -> Tensor:
        return torch.log(x - x).sum()  # compiled

    with trace:
        loss = loss_of(torch.ones(3))
    assert first(trace.failure(loss)).birth.line == line_of("# compiled")


def test_vmap_does_not_disturb_it(trace: Tracer) -> None:
    def root(x: Tensor) -> Tensor:
        return x.sqrt().sum()  # under vmap

    with trace:
        out = torch.func.vmap(torch.func.grad(root))(torch.zeros(2, 3))
    assert not trace.follower.trouble
    birth = first(trace.failure(out, "result"))
    assert birth.birth.line == line_of("# under vmap")


def test_an_op_that_raises_leaves_its_evidence(trace: Tracer) -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    with trace, pytest.raises(IndexError):
        F.cross_entropy(logits, labels)
    raised = trace.follower.noticed.raised
    assert [r.birth.op for r in raised] == ["nll_loss"]
    assert (raised[0].birth.facts["invalid"], raised[0].birth.facts["index_max"]) == (1, 3)


def test_comparisons_of_a_bad_number_are_noticed(trace: Tracer) -> None:
    with trace:
        loss = torch.zeros(1).div(torch.zeros(1)).sum()
        skipped = bool(loss > 100)
    step = trace.failure(loss)
    assert not skipped and step is not None
    assert [(c.op, c.result, c.threshold) for c in step.comparisons] == [("gt", False, 100.0)]


def test_no_activation_is_kept_alive(trace: Tracer) -> None:
    net = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
    kept: list[weakref.ref[Tensor]] = []
    with trace, torch.no_grad():
        h = torch.randn(16, 32)
        for layer in net:
            h = layer(h)
            kept.append(weakref.ref(h))
        del h
        gc.collect()
        assert [reference() for reference in kept] == [None] * 4


def test_the_journal_is_bounded(trace: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_journal, "_HEALTHY_KEPT", 2_000)
    x = torch.zeros(1)
    with trace:
        for _ in range(5_000):
            x = x + 1
    assert len(trace.follower.journal) <= 2_000


def test_a_traced_training_is_bit_for_bit_the_same() -> None:
    def train(tracer: Tracer | None) -> list[Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 3)
        )
        opt = torch.optim.AdamW(net.parameters(), 1e-2)
        for _ in range(4):
            if tracer is not None:
                tracer.start()
            loss = F.cross_entropy(net(torch.randn(8, 1, 8, 8)), torch.randint(0, 3, (8,)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if tracer is not None:
                tracer.stop()
        return list(net.state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(train(None), train(Tracer()), strict=True))


def test_it_leaves_no_trace_of_itself(trace: Tracer) -> None:
    from torch.nn.modules import module as internals
    from torch.optim import optimizer as hooks

    before = len(internals._global_forward_hooks), len(hooks._global_optimizer_post_hooks)
    with trace:
        torch.ones(2).sum()
    assert (len(internals._global_forward_hooks), len(hooks._global_optimizer_post_hooks)) == before
    assert torch.overrides._get_current_function_mode() is None  # type: ignore[no-untyped-call]
    seen = trace.follower.ops
    torch.ones(2).sum()
    assert trace.follower.ops == seen


def test_stopping_below_a_mode_of_the_script_leaves_that_mode_on(trace: Tracer) -> None:
    trace.start()
    with torch.device("meta"):
        trace.stop()
        assert torch.empty(2).device.type == "meta"
        assert trace.follower.ops == 0
    assert torch.empty(2).device.type == "cpu"


def test_an_own_defect_is_kept_and_does_not_reach_the_script(
    trace: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(trace.follower, "_write", broken)
    with trace:
        assert float(torch.ones(2).sum()) == 2.0
    assert "a defect" in trace.follower.trouble[-1]
