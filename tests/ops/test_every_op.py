"""What holds for every op: autocast, torch.compile and vmap leave the result as it is."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stayfinite import ops

MASK = torch.tensor([[True, False], [False, False]])
LABELS = torch.tensor([-100, 1])
EVERY: dict[str, Callable[[Tensor], Tensor]] = {
    "safe_log": ops.safe_log,
    "safe_sqrt": ops.safe_sqrt,
    "safe_pow": lambda x: ops.safe_pow(x, 0.6),
    "safe_pow, negative": lambda x: ops.safe_pow(x, -0.5),
    "safe_div": lambda x: ops.safe_div(x, x),
    "log1mexp": lambda x: ops.log1mexp(-x),
    "safe_norm": lambda x: ops.safe_norm(x, -1),
    "normalize": ops.normalize,
    "rms_norm": ops.rms_norm,
    "masked_mean": lambda x: ops.masked_mean(x, MASK),
    "masked_softmax": lambda x: ops.masked_softmax(x, MASK),
    "masked_log_softmax": lambda x: ops.masked_log_softmax(x, MASK),
    "normalize_weights": ops.normalize_weights,
    "beta_mutual_information": lambda x: ops.beta_mutual_information(x, x, x, 0.6),
    "sinkhorn": ops.sinkhorn,
    "kd_loss": lambda x: ops.kd_loss(x, 2 * x, 2.0, MASK[:, 0]),
    "masked_cross_entropy": lambda x: ops.masked_cross_entropy(x, LABELS),
}
every_op = pytest.mark.parametrize("op", EVERY.values(), ids=EVERY.keys())
X = torch.tensor([[0.0, 0.7], [0.2, 0.5]])


@every_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(op: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        under_autocast = op(X)
    assert under_autocast.dtype == torch.float32
    assert torch.equal(under_autocast, op(X))


@every_op
def test_compile_captures_it_as_one_graph(op: Callable[[Tensor], Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(op, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), op(X))


@every_op
def test_vmap_is_a_loop(op: Callable[[Tensor], Tensor]) -> None:
    batch = torch.stack([X, X + 0.1])
    torch.testing.assert_close(torch.vmap(op)(batch), torch.stack([op(x) for x in batch]))
