"""Sparse tensors are followed by the numbers they hold: a bad value is born where it was made, not where it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.replay import Tracer

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch on its own layouts


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(text))


def birth_of(trace: Tracer, loss: Tensor) -> TracedBirth:
    step = trace.failure(loss)
    assert step is not None and step.birth is not None and not trace.follower.trouble
    return step.birth


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_made_before_it_became_sparse(layout: str) -> None:
    torch.manual_seed(0)
    counts = torch.tensor([2.0, 0.0, 3.0, 1.0])
    weight = torch.randn(4, 2, requires_grad=True)
    trace = Tracer()
    with trace:
        inverse = 1 / counts  # of a row without entries
        scaled = LAYOUTS[layout](torch.diag(inverse)) @ weight
        loss = scaled.pow(2).mean()
    birth = birth_of(trace, loss)
    assert birth.birth.line == line_of("# of a row without entries")
    assert birth.birth.inf == 1 and birth.birth.first_index == (1,)


def test_a_value_made_of_the_numbers_of_a_sparse_tensor() -> None:
    torch.manual_seed(0)
    places = torch.tensor([[0, 1, 2], [1, 0, 2]])
    values = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    trace = Tracer()
    with trace:
        graph = torch.sparse_coo_tensor(places, values.log(), (3, 3)).coalesce()  # an edge of weight 0
        loss = torch.sparse.mm(graph, torch.ones(3, 2)).sum()
    birth = birth_of(trace, loss)
    assert birth.op == "log" and birth.birth.line == line_of("# an edge of weight 0")


def test_a_sparse_result_is_named_without_a_place_in_it() -> None:
    graph = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([3e38, 1.0]), (2, 2))
    trace = Tracer()
    with trace:
        doubled = graph * 2.0  # beyond float32
        loss = torch.sparse.sum(doubled)
    birth = birth_of(trace, loss)
    assert birth.birth.line == line_of("# beyond float32")
    assert (birth.birth.inf, birth.birth.first_index, birth.birth.samples) == (1, (), ())
    operand = birth.operand("self")
    assert operand is not None and operand.summary.max == pytest.approx(3e38)


def test_sparse_gradients_of_an_embedding() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(10, 4, sparse=True)
    trace = Tracer()
    with trace:
        rows = table(torch.tensor([1, 2, 2]))
        length = (rows * torch.tensor([[1.0], [0.0], [1.0]])).norm(dim=1)
        (length.sqrt().sum()).backward()  # the gradient of the root of 0
    step = trace.failure()
    assert step is not None and step.birth is not None and step.trigger == "gradient"
    assert step.birth.birth.line == line_of("# the gradient of the root of 0")
    assert not trace.follower.trouble


def test_a_sparse_buffer_that_holds_nan_has_its_name() -> None:
    class Propagation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("graph", torch.tensor([[float("nan"), 1.0], [0.0, 1.0]]).to_sparse())
            self.weight = nn.Parameter(torch.randn(2, 2))

        def forward(self) -> Tensor:
            return torch.sparse.mm(self.get_buffer("graph"), self.weight).sum()

    model, trace = Propagation(), Tracer()
    with trace:
        loss = model()
    birth = birth_of(trace, loss)
    assert birth.phase == "state"
    assert birth.output is not None and birth.output.name == "graph"


def test_a_healthy_training_on_a_graph_has_no_failure() -> None:
    torch.manual_seed(0)
    graph = (torch.rand(6, 6) < 0.4).float().to_sparse()
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    trace = Tracer()
    with trace:
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.sparse.mm(graph, net(torch.randn(6, 3))).pow(2).mean()
            loss.backward()
            optimizer.step()
    assert trace.failure(loss) is None and trace.failure() is None and not trace.follower.trouble
