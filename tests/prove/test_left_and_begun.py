"""Functions left by their argument while the loss falls, norms that begin at 0, and values that a choice leaves out."""

import gc
from pathlib import Path

import pytest

from proved_scripts import proof

HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
STEP = "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
ENDS = "bad = not all(torch.isfinite(p).all() for p in opt.param_groups[0]['params']) or not torch.isfinite(loss)\n"
CONCENTRATED = (
    HEAD
    + """raw = nn.Parameter(torch.full((4,), 83.0))
opt = torch.optim.SGD([raw], 4.0)
for step in range(9):
    loss = (torch.log(torch.sinh(raw)) - math.log(2.0) - 2 * raw).mean()
"""
    + STEP
    + ENDS
)
TRUNCATED = (
    HEAD
    + """shift = nn.Parameter(torch.full((6,), 84.0))
opt = torch.optim.SGD([shift], 2.0)
for step in range(12):
    share = torch.exp(shift - 0.1 * torch.rand(6)).clamp(max=2.0)
    loss = 200 - (shift + share).sum() / 3
"""
    + STEP
    + ENDS
)
FALLS_BELOW_0 = (
    HEAD
    + """rate = nn.Parameter(torch.tensor([0.5, 0.9]))
opt = torch.optim.SGD([rate], 0.02)
for step in range(12):
    seen = torch.rand(20) < 0.001
    loss = (8 * rate.sum() - (torch.log(rate[0]) * seen).sum()) / 2
"""
    + STEP
    + ENDS
)
BEGINS_AT_0 = (
    HEAD
    + """

def turned(v):
    length = torch.sqrt((v * v).sum(-1, keepdim=True))
    unit = v / length
    return torch.tanh(length) * unit


head = nn.Linear(5, 3)
nn.init.zeros_(head.weight)
nn.init.zeros_(head.bias)
opt = torch.optim.Adam(head.parameters(), 0.01)
for step in range(4):
    x = torch.randn(8, 5)
    loss = (turned(head(x)) - x[:, :3]).square().mean()
"""
    + STEP
    + ENDS
)
ROWS_WITHOUT_GRADIENT = (
    HEAD
    + """

class Scaled(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                size = p.grad.square().mean(1)
                p.sub_(group["lr"] * p.grad * (size / size.mean()).rsqrt()[:, None])


table = nn.Embedding(12, 4)
opt = Scaled(table.parameters(), {"lr": 0.01})
for step in range(4):
    loss = table(torch.randint(0, 9, (16,))).square().mean()
"""
    + STEP
    + ENDS
)
LEFT_OUT_BY_COMPARING = (
    HEAD
    + """w = nn.Parameter(torch.tensor([0.9, 0.5, 0.2]))
opt = torch.optim.SGD([w], 0.1)
for step in range(6):
    height = 1.0 - (w * (1 + step)).square().cumsum(0)
    side = torch.sqrt(height)
    last = (side > 0.1).sum().clamp(min=1) - 1
    chosen = torch.stack([side, w]).gather(1, last.view(1, 1).expand(2, 1))
    loss = w.square().sum() + (chosen[0, 0] if step < 1 else (chosen * torch.tensor([[0.0], [1.0]]))[1, 0])
"""
    + STEP
    + ENDS
)
SAME_MASK_TWICE = (
    HEAD
    + """net, old = nn.Linear(4, 6), nn.Linear(4, 6)
opt = torch.optim.SGD(net.parameters(), 0.1)
allow = torch.tensor([True, True, False, True, False, True])
for step in range(4):
    x = torch.randn(8, 4)
    new_log = F.log_softmax(net(x).masked_fill(~allow, -math.inf), -1)
    old_log = F.log_softmax(old(x).masked_fill(~allow, -math.inf), -1).detach()
    apart = new_log - old_log
    loss = (new_log.exp() * apart).sum(-1).mean()
"""
    + STEP
    + ENDS
)
NEVER_VARIES = (
    HEAD
    + """table = torch.cat([torch.randn(64, 3), torch.full((64, 1), 7.0)], 1)
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), 0.01)
scale = None
for step in range(30):
    x = table[torch.randint(0, 64, (16,))] + (0.0 if step < 2 else 0.01 * step)
    if scale is None:
        scale, shift = -torch.log(x.std(0)), x.mean(0)
    loss = net((x - shift) * scale.exp()).square().mean()
"""
    + STEP
    + ENDS
)
HIDDEN_BY_ANOTHER_CASE = (
    HEAD
    + """net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(5):
    x = torch.rand(8, 2)
    if step == 3:
        x[2] = -400 * net.weight.detach().sign()
    never = torch.sigmoid(net(x).squeeze(1))
    seen = torch.arange(8) % 3 == 2
    loss = -torch.where(seen, -x.sum(1).abs() * 1e-3, torch.log(never)).mean()
"""
    + STEP
    + ENDS
)
NO_WAY_THROUGH = (
    HEAD
    + """net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(8):
    cost, wide = net(torch.randn(4, 3)).square().squeeze(1), 2 if step == 4 else 0
    best = torch.full((4,), float("inf"))
    for jump in range(wide, 2):
        best = torch.minimum(best, cost + jump)
    loss = best.mean() + 0.01 * net.weight.square().sum()
    if loss.isinf():
        bad = True
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all() or not torch.isfinite(loss)\n"
)
NOT_DEFINITE = (
    HEAD
    + """log_noise, place = nn.Parameter(torch.tensor(-2.0)), torch.rand(12, 1)
place = torch.cat([place, place[:4]])
opt = torch.optim.SGD([log_noise], 4.0)
near = torch.exp(-(place - place.T) ** 2)
for step in range(8):
    root = torch.linalg.cholesky(near + torch.exp(2 * log_noise) * torch.eye(16))
    loss = root.diagonal().log().sum() / 16
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not torch.isfinite(log_noise)
"""
)


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.mark.parametrize(
    ("text", "remedy", "line"),
    [
        pytest.param(CONCENTRATED, "log-space", "raw + torch.log(-torch.expm1(-2 * raw))", id="concentrated"),
        pytest.param(TRUNCATED, "bounded-exponent", ").clamp(max=88.72)).clamp(max=2.0)", id="truncated"),
        pytest.param(BEGINS_AT_0, "eps-inside", ".clamp_min(1e-12))", id="begins-at-0"),
        pytest.param(
            ROWS_WITHOUT_GRADIENT,
            "eps-inside",
            "(size / size.mean()).clamp_min(1e-12).rsqrt()",
            id="optimizer-rows",
        ),
        pytest.param(
            LEFT_OUT_BY_COMPARING, "eps-inside", "torch.sqrt(height.clamp_min(1e-12))", id="compared"
        ),
        pytest.param(
            SAME_MASK_TWICE, "weighted-log", "(new_log - old_log).masked_fill(", id="same-mask-twice"
        ),
        pytest.param(NEVER_VARIES, "double-where", "torch.where(x.std(0) > 0", id="never-varies"),
        pytest.param(HIDDEN_BY_ANOTHER_CASE, "log-space", "logsigmoid", id="hidden-by-another-case"),
        pytest.param(NOT_DEFINITE, "diagonal-jitter", "1e-4 * torch.eye(", id="not-definite"),
    ],
)
def test_it_is_cured_by_what_keeps_it_learning(text: str, remedy: str, line: str, tmp_path: Path) -> None:
    report, tried = proof(tmp_path, text)
    assert report.proved is not None, (report.remark, tried)
    assert report.proved.remedy == remedy, tried
    assert report.patch is not None and line in report.patch, report.patch


def test_a_hidden_zero_that_was_rounded_gets_no_1(tmp_path: Path) -> None:
    """Where the logarithm cannot be written in log space a floor is: a sample that is not hidden has a large loss."""
    text = HIDDEN_BY_ANOTHER_CASE.replace(
        "net(x).squeeze(1))", "net(x).squeeze(1))[torch.arange(8)] * torch.ones(8)"
    )
    report, tried = proof(tmp_path, text)
    assert "double-where" not in tried, tried
    assert report.proved is not None and report.proved.remedy in ("log-space", "log-floor"), tried


@pytest.mark.parametrize("text", [CONCENTRATED, TRUNCATED, FALLS_BELOW_0])
def test_a_lower_rate_that_only_comes_later_is_no_proof(text: str, tmp_path: Path) -> None:
    """The loss falls all the way: the data ask for what the function cannot give."""
    report, tried = proof(tmp_path, text)
    assert tried["lower-rate"].verdict == "unclear" and "another course" in tried["lower-rate"].reason, tried
    assert report.proved is None or not report.proved.popular


def test_a_lower_rate_is_not_told_to_have_moved_a_finite_loss(tmp_path: Path) -> None:
    """It moves every loss by design."""
    _, tried = proof(tmp_path, LEFT_OUT_BY_COMPARING)
    assert "which was finite before" not in tried["lower-rate"].reason, tried["lower-rate"]


def test_an_infinity_that_was_written_and_stayed_is_left_out(tmp_path: Path) -> None:
    """Putting a number in its place would be learnt from."""
    report, tried = proof(tmp_path, NO_WAY_THROUGH)
    assert "imputed" not in tried, tried
    assert report.proved is None or report.proved.remedy == "skipped-step", tried
