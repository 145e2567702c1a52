"""Remedies for ways to fail that scripts nobody tuned for have shown: each proved on a script of that kind."""

import gc
from pathlib import Path

import pytest

import prove
from proved_scripts import proof
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove.trial import Plan, TrialResult

HEAD = "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
STEP = "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
ENTROPY = (
    HEAD
    + """

def gates(x, weight):
    return torch.softmax(30 * x @ weight, -1)


def entropy(p):
    return -(p * p.log()).sum(-1).mean()


weight = (4 * torch.randn(6, 4)).requires_grad_()
loss = entropy(gates(torch.randn(32, 6), weight))
loss.backward()
bad = not torch.isfinite(weight.grad).all()
"""
)
ONE_HOT = (
    HEAD
    + """net = nn.Linear(6, 4)
y = nn.functional.one_hot(torch.randint(0, 4, (8,)), 4).float()
logq = net(torch.randn(8, 6)).log_softmax(-1)
loss = (y * (torch.log(y) - logq)).sum(-1).mean()
loss.backward()
bad = not torch.isfinite(loss)
"""
)
EQUAL_VALUES = (
    HEAD
    + """a = nn.Parameter(torch.eye(5))
lam, vec = torch.linalg.eigh(a @ a.T)
root = vec * lam.sqrt() @ vec.T
loss = (torch.randn(9, 5) @ root).tanh().mean()
loss.backward()
bad = not torch.isfinite(a.grad).all()
"""
)
GAMMA = (
    HEAD
    + """

def log_prob(y, theta):
    return torch.lgamma(y + theta) - torch.lgamma(y + 1)


def dispersion(x):
    return torch.relu(net(x))


net = nn.Linear(5, 3)
y = torch.poisson(torch.full((16, 3), 2.0))
loss = log_prob(y, dispersion(torch.randn(16, 5))).mean()
loss.backward()
bad = not torch.isfinite(loss)
"""
)
RATIO = (
    HEAD
    + """net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(6):
    logp = net(torch.randn(16, 5)).squeeze(1)
    old = logp.detach().clone()
    if step == 3:
        old = old - torch.linspace(0, 200, 16)
    ratio = torch.exp(logp - old)
    loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
VARIANCE = (
    HEAD
    + """net, head = nn.Linear(5, 2), nn.Linear(1, 1)
opt = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-3)
x = torch.randn(4, 8, 5)
x[2, 1] *= 3e4
for step in range(4):
    mu, logvar = net(x[step]).chunk(2, 1)
    loss = (mu - head(torch.exp(logvar.abs()))).square().mean()
"""
    + STEP
    + "bad = not all(torch.isfinite(v).all() for s in opt.state.values() for v in s.values())\n"
)
UNIT = (
    HEAD
    + """net = nn.Linear(6, 4, bias=False)
x = torch.randn(8, 6)
x[3] = 0
q = net(x)
q = q * q.pow(2).sum(-1, keepdim=True).rsqrt()
loss = q[:, 0].mean()
loss.backward()
bad = not torch.isfinite(loss)
"""
)
BOX = (
    HEAD
    + """net = nn.Linear(4, 1)
boxes = torch.tensor([[0.0, 0, 4, 5], [1, 1, 1, 6], [2, 0, 9, 3]])
w = boxes[:, 2] - boxes[:, 0]
loss = (net(boxes).squeeze(1) - torch.log(w / 4.0)).square().mean()
loss.backward()
bad = not torch.isfinite(loss)
"""
)
MOMENTS = (
    "import io\n"
    + HEAD
    + """net = nn.Linear(5, 2)


def build():
    return torch.optim.Adam(net.parameters(), 1e-3)


opt = build()
for step in range(6):
    if step == 3:
        saved = opt.state_dict()
        saved["state"][0]["exp_avg_sq"][0, 1] = float("nan")
        opt = build()
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        opt.load_state_dict(torch.load(file))
    loss = net(torch.randn(8, 5)).square().mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
TRUST = (
    HEAD
    + """

class Trust(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                ratio = p.norm() / p.grad.norm()
                p.sub_(group["lr"] * ratio * p.grad)


net, unused = nn.Linear(4, 1), nn.Parameter(torch.ones(3))
opt = Trust([*net.parameters(), unused], 0.01)
for step in range(3):
    loss = net(torch.randn(8, 4)).square().mean() + 0 * unused.sum()
"""
    + STEP
    + "bad = not torch.isfinite(unused).all()\n"
)
SHARES = (
    HEAD
    + """net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(8):
    x = torch.rand(8, 4)
    if step % 3 == 2:
        x[5] = 0.0
    loss = (net(x) / x.sum(1, keepdim=True)).square().mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
TWICE_THE_SAME_POINT = (
    HEAD
    + """length = nn.Parameter(torch.zeros(()))
opt = torch.optim.SGD([length], 0.01)
for step in range(4):
    x = torch.tensor([-1.0, 0.0, 1.5, 0.0] if step > 1 else [-1.0, 0.0, 1.5, 3.0])
    K = torch.exp(-0.5 * (x[:, None] - x[None, :]) ** 2 / length.exp())
    L = torch.linalg.cholesky(K)
    loss = torch.cholesky_solve(x.sin()[:, None], L).square().sum() + L.diagonal().log().sum()
"""
    + STEP
    + "bad = False\n"
)
LENGTHS = (
    HEAD
    + """net = nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(4):
    seen = torch.ones(8, 1)
    if step == 2:
        seen[5] = 0.0
    move = net(torch.randn(8, 3)) * seen
    loss = ((torch.hypot(move[:, 0], move[:, 1]) - 1).square() * seen[:, 0]).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
ASPECT = (
    "import math\n"
    + HEAD
    + """net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(4):
    x = torch.rand(8, 4)
    w, h = x[:, 0] * (x[:, 2] > 0.1), x[:, 1] * (x[:, 2] > 0.1)
    a, b = net(x).exp().unbind(1)
    loss = (4 / math.pi**2 * (torch.atan(w / h) - torch.atan(a / b)) ** 2).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
PRUNED = (
    HEAD
    + """net = nn.Linear(3, 4)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(4):
    share = (net(torch.randn(8, 3)) * (5.0 if step == 2 else 0.1)).softmax(-1)
    share = share * (share > 0.02)
    share = share / share.sum(-1, keepdim=True)
    loss = -torch.logsumexp(share.log() + torch.randn(8, 4), -1).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
FULL_THROTTLE = (
    HEAD
    + """net = nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(4):
    pedal = torch.rand(8)
    if step == 2:
        pedal[5] = 1.0
    alpha, beta = (nn.functional.softplus(net(torch.randn(8, 3))) + 1).unbind(1)
    loss = -torch.distributions.Beta(alpha, beta).log_prob(pedal).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
DRY_HOURS = (
    HEAD
    + """net = nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(4):
    rain = 20 * torch.rand(8)
    if step == 2:
        rain[5] = 0.0
    shape, rate = (nn.functional.softplus(net(torch.randn(8, 3))) + 0.1).unbind(1)
    loss = -torch.distributions.Gamma(shape, rate, validate_args=False).log_prob(rain).mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
NEVER_WRITTEN = (
    HEAD
    + """torch.use_deterministic_algorithms(True)  # fills it with NaN, so that this fails every time
net, gate = nn.Linear(4, 4), nn.Parameter(torch.empty(4))
opt = torch.optim.SGD([*net.parameters(), gate], 0.01)
for step in range(3):
    loss = (net(torch.randn(8, 4)) * torch.tanh(gate)).square().mean()
"""
    + STEP
    + "bad = not torch.isfinite(loss)\n"
)
MASKED_CHOICE = (
    HEAD
    + """net = nn.Linear(6, 5)
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(14):
    scores = net(torch.randn(16, 6))
    allowed = torch.ones(16, 5, dtype=torch.bool)
    if step >= 8:
        allowed[:, 1:] = torch.rand(16, 4) > 0.3
    scores = scores.masked_fill(~allowed, float("-inf"))
    share, log_share = scores.softmax(-1), scores.log_softmax(-1)
    loss = log_share[:, 0].neg().mean() + (share * log_share).sum(-1).mean()
"""
    + STEP
    + "bad = not torch.isfinite(loss)\n"
)
COMES_TO_ZERO = (
    HEAD
    + """w = torch.ones(3, requires_grad=True)
opt = torch.optim.SGD([w], 0.1)
for step in range(12):
    kept = (w > 0.35).float() * w
    loss = w.sum() + 0.01 * torch.sqrt(kept).sum()
"""
    + STEP
    + "bad = not torch.isfinite(w).all()\n"
)


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.mark.parametrize(
    ("text", "remedy", "line"),
    [
        pytest.param(ENTROPY, "weighted-log", "-(p * p.clamp_min(1e-30).log())", id="entropy"),
        pytest.param(
            ONE_HOT, "weighted-log", "torch.log(y.clamp_min(1e-30))", id="one-hot", marks=pytest.mark.long
        ),
        pytest.param(
            MASKED_CHOICE,
            "weighted-log",
            "share * log_share.masked_fill(share == 0, 0.0)",
            id="masked-choice",
        ),
        pytest.param(EQUAL_VALUES, "distinct-values", ".linspace(0, 1e-4", id="equal-values"),
        pytest.param(GAMMA, "log-floor", "torch.lgamma((y + theta).clamp_min(1e-6))", id="gamma"),
        pytest.param(
            RATIO, "bounded-exponent", "(logp - old).clamp(max=88.72)", id="ratio", marks=pytest.mark.long
        ),
        pytest.param(UNIT, "eps-inside", ".clamp_min(1e-12).rsqrt()", id="unit"),
        pytest.param(
            LENGTHS, "eps-inside", ".square()).clamp_min(1e-12).sqrt()", id="lengths", marks=pytest.mark.long
        ),
        # 4 / math.pi ** 2 on the same line divides by a number, which has no clamp_min.
        pytest.param(ASPECT, "guarded-division", "torch.where(h == 0", id="aspect"),
        # log_softmax instead would learn from what was pruned.
        pytest.param(PRUNED, "log-floor", "share.clamp_min(1e-30).log()", id="pruned"),
        pytest.param(
            FULL_THROTTLE,
            "domain-margin",
            "pedal.clamp(1e-6, 1 - 1e-6)",
            id="full-throttle",
            marks=pytest.mark.long,
        ),
        pytest.param(DRY_HOURS, "domain-margin", "rain.clamp_min(1e-6)", id="dry-hours"),
        pytest.param(BOX, "log-floor", "(w / 4.0).clamp_min(1e-6)", id="box"),
        pytest.param(TRUST, "guarded-division", "p.norm() / p.grad.norm().clamp_min(1e-6)", id="trust"),
        pytest.param(
            TWICE_THE_SAME_POINT,
            "diagonal-jitter",
            "cholesky(K + 1e-4 * torch.eye(",
            id="same-point",
            marks=pytest.mark.long,
        ),
        # nan_to_num would leave the garbage that happens to be finite.
        pytest.param(
            NEVER_WRITTEN,
            "zeroed-memory",
            "nn.Parameter(torch.zeros(4))",
            id="never-written",
            marks=pytest.mark.long,
        ),
        # A floor of 1e-6 is finite, too, but the update that it gives ruins the weights.
        pytest.param(
            SHARES, "guarded-division", "torch.where((divisor := x.sum(1, keepdim=True)) == 0", id="shares"
        ),
    ],
)
def test_it_is_cured_at_its_line(text: str, remedy: str, line: str, tmp_path: Path) -> None:
    report, tried = proof(tmp_path, text)
    assert report.proved is not None, (report.remark, tried)
    assert report.proved.remedy == remedy, tried
    assert report.patch is not None and line in report.patch, report.patch


@pytest.mark.long
def test_a_bound_that_leaves_moments_that_are_not_finite_is_not_enough(tmp_path: Path) -> None:
    """exp(40) is finite, and so is its gradient; its square, which Adam keeps, is not."""
    report, tried = proof(tmp_path, VARIANCE)
    assert report.proved is not None and report.patch is not None, tried
    assert "clamp(max=10)" in report.patch


def test_moments_that_came_in_bad_begin_anew(tmp_path: Path) -> None:
    report, _ = proof(tmp_path, MOMENTS)
    assert report.proved is not None and report.proved.remedy == "fresh-moments"


@pytest.mark.long
def test_another_course_of_the_weights_is_no_word_against_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tenth of the rate the weights do not come to 0 in time. And the steps before are not followed op by op."""
    followed: list[int | None] = []

    def noted(options: Options, state: Path, plan: Plan, seconds: float) -> TrialResult:
        followed.append(plan.follow_from)
        return run_trial(options, state, plan, seconds)

    monkeypatch.setattr(prove, "run_trial", noted)
    report, tried = proof(tmp_path, COMES_TO_ZERO)
    assert tried["lower-rate"].verdict == "unclear" and "another course" in tried["lower-rate"].reason
    assert not report.worthless and report.proved is not None and report.proved.remedy == "eps-inside"
    assert followed[0] is None and len(followed) > 4 and set(followed[1:]) == {5}  # it fails in step 7
