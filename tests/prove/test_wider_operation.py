"""One operation in a wider dtype, in code of mixed dtypes: it is computed, what follows finds its dtype, and the
verdict says what came of it."""

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prove
from stayfinite import Guard
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.remedies.wider_calls import Place, wider_calls
from stayfinite.sandbox.fork import obstacle

HERE = str(Path(__file__).resolve())


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


def line_of(function: object) -> int:
    return int(function.__code__.co_firstlineno) + 1  # type: ignore[attr-defined]


def matmul(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.mT


def convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x[:, None], w[:, None, :1])[:, 0]


def layer_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[0])


def einsum(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bi,oi->bo", x, w)


def in_place(x: Tensor, w: Tensor) -> Tensor:
    return x.clone().mul_(w[0])


def operator_in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x.clone()
    y *= w[0]
    return y


OPS = [
    (matmul, ("matmul",), 0),
    (convolution, ("conv1d",), 0),
    (layer_norm, ("layer_norm",), 0),
    (einsum, ("einsum",), 0),
    (in_place, ("mul",), 0),
    (operator_in_place, ("imul", "mul"), 1),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.float16])
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_autocast_does_not_narrow_what_is_to_be_wide(
    dtype: torch.dtype, given: torch.dtype, wide: str
) -> None:
    x, w = (
        torch.full((2, 8), 3e2, dtype=given),
        torch.full((4, 8), 4e2),
    )  # all float32: autocast makes half of it
    if given is not torch.float32:
        w = w.to(given)
    with torch.autocast("cpu", dtype=dtype):
        assert matmul(x, w).dtype is dtype
        with wider_calls(Place(HERE, line_of(matmul), ("matmul",)), wide, "in range"):
            result = matmul(x, w)
    assert result.dtype is torch.float32 and torch.equal(result, torch.full((2, 4), 9.6e5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("op", "names", "below"), OPS, ids=[op[0].__name__ for op in OPS])
def test_the_op_is_computed_in_float32_and_given_back(
    op: object, names: tuple[str, ...], below: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, dtype=dtype)
    w = torch.randn(8, 8, dtype=dtype, requires_grad=True)
    place = Place(HERE, line_of(op) + below, names)
    with wider_calls(place, "float32", "in range"):
        given = op(x, w)  # type: ignore[operator]
    exact = op(x.double(), w.double())  # type: ignore[operator]
    assert given.dtype is dtype and torch.equal(given, exact.float().to(dtype))
    given.sum().backward()
    assert w.grad is not None and w.grad.dtype is dtype and bool(w.grad.isfinite().all())
    with wider_calls(
        Place(HERE, place.line + 1, names), "float32", "in range"
    ):  # another line: nothing is touched
        assert torch.equal(op(x, w), op(x, w))  # type: ignore[operator]


def test_a_result_beyond_the_narrow_range_stays_wide() -> None:
    x, w = torch.full((2, 8), 200.0).half(), torch.full((8, 8), 200.0).half()
    place = Place(HERE, line_of(matmul), ("matmul",))
    with wider_calls(place, "float32", "in range"):
        wide = matmul(x, w)
    with wider_calls(place, "float32", "always"):
        narrow = matmul(x, w)
    assert wide.dtype is torch.float32 and bool(wide.isfinite().all())
    assert narrow.dtype is torch.float16 and bool(narrow.isinf().all())


def test_an_op_that_writes_writes_into_its_own_tensor() -> None:
    x = torch.full((4, 8), 200.0).half()
    before = x.data_ptr()
    with wider_calls(Place(HERE, line_of(writes), ("mul",)), "float32", "in range"):
        given = writes(x, torch.full((8,), 2.0).half())
    assert given.data_ptr() == before and given.dtype is torch.float16 and bool((x == 400).all())
    with wider_calls(Place(HERE, line_of(writes), ("mul",)), "float32", "in range"):
        assert bool(writes(x, x.clone()).isinf().all())  # it cannot hold more


def writes(x: Tensor, by: Tensor) -> Tensor:
    return x.mul_(by)


SCRIPT = """import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
first, second = nn.Linear(8, 8).to({dtype}), nn.Linear(8, 8).to({dtype})
opt = torch.optim.SGD([*first.parameters(), *second.parameters()], 1e-6)
for step in range(4):
    x = torch.randn(4, 8).to({dtype})
    if step == 2:
        x = x * 1e3
    h = first(x)
    h = {op}
    loss = second(h).float().pow(2).mean().log1p()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def tried(tmp_path: Path, op: str, dtype: str = "torch.float16") -> tuple[ProofReport, dict[str, Tried]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(op=op, dtype=dtype))
    report = prove.proof_of(script)
    return report, {one.remedy: one for one in report.tried}


@pytest.mark.parametrize(
    ("op", "verdict"),
    [
        ("torch.einsum('bi,bi->bi', h, h) * 1e-4", "proved"),  # back in half at the end of the line
        pytest.param(
            "h.clone().mul_(h)", "failed", marks=pytest.mark.long
        ),  # half cannot hold what is written
        pytest.param("(h @ h.mT @ h).tanh()", "failed", marks=pytest.mark.long),
        pytest.param("F.layer_norm(h.square(), (8,))", "proved", marks=pytest.mark.long),
    ],
)
def test_a_half_model_goes_on_in_half(tmp_path: Path, op: str, verdict: str) -> None:
    """What follows is a Linear in float16, which takes nothing else: no verdict is about a wrong dtype."""
    report, verdicts = tried(tmp_path, op)
    own = verdicts["float32-operation"]
    assert own.verdict == verdict and "dtype" not in own.reason, own
    if "einsum" in op:
        assert (
            report.patch is not None
            and "h.float(), h.float()" in report.patch
            and ".to(h.dtype)" in report.patch
        )


class Growing(nn.Module):
    """In bfloat16: what is normed grows by the same factor in every step; its square overflows first."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.zeros(1)), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.layer_norm(x * self.scale.exp(), (8,)))


def growing(model: Growing, batch: Tensor) -> Tensor:
    return model(batch).float().pow(2).mean() - model.scale.float().sum()


@pytest.mark.long
@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_a_wider_dtype_for_what_grows_on_postpones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    torch.manual_seed(0)
    model = Growing().to(torch.bfloat16)
    rates = [{"params": [model.scale], "lr": 4.0}, {"params": model.head.parameters(), "lr": 1e-3}]
    guard = Guard(model, torch.optim.SGD(rates), run_dir=tmp_path, quiet=True, prove_limit=300.0)
    incident = None
    while incident is None:
        incident = guard.step(growing, model, torch.randn(16, 8).to(torch.bfloat16)).incident
        assert guard.counters.applied < 20
    assert incident.birth is not None and "layer_norm" in incident.birth.op and incident.blame == "state"
    verdicts = {one.remedy: one for one in incident.tried}
    narrow, wide = verdicts["float32-operation"], verdicts["float64-operation"]
    # A layer norm of bfloat16 sums its squares in float32 anyway.
    assert narrow.verdict == "failed" and "still not finite" in narrow.reason, narrow
    assert wide.verdict == "postpones" and "steps later" in wide.reason, wide
    assert not any(one.proved for one in incident.tried if "operation" in one.remedy)
