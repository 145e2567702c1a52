"""What cures a division by a size that has a name, a logarithm of an exact 0, and steps that go past a scaler."""

import gc
from pathlib import Path

import pytest

from proved_scripts import proof
from stayfinite.remedies.sizes import is_number, is_size
from stayfinite.remedies.source import SourceSite, argument

HEAD = "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
STEP = "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
NAMED = (
    HEAD
    + """net = nn.Linear(5, 3)
opt = torch.optim.SGD(net.parameters(), 0.01)


def scatter(codes):
    rows, width = codes.shape
    codes = codes - codes.mean(0)
    return codes.T @ codes / (rows - 1)


for group in torch.randn(17, 5).split(8):
    loss = scatter(net(group)).square().mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
COUNTED = (
    HEAD
    + """net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(6):
    seen = torch.rand(8) < (0.0 if step == 3 else 0.6)
    many = seen.sum().item()
    loss = (net(torch.randn(8, 3)).squeeze(1).square() * seen).sum() / many
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
SWITCHED_OFF = (
    HEAD
    + """gain, net = nn.Parameter(torch.ones(4, 1)), nn.Linear(4, 1)
opt = torch.optim.SGD([gain, *net.parameters()], 0.001)
for step in range(6):
    tone = torch.randn(8, 4, 32)
    if step == 3:
        tone[5, 2] = 0.0
    level = torch.log10((torch.fft.rfft(tone * gain).abs() ** 2).mean(-1))
    loss = net(level).square().mean()
"""
    + STEP
    + "bad = not torch.isfinite(net.weight).all()\n"
)
PAST = (
    HEAD
    + """net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), 0.03)
grown = torch.amp.GradScaler("cpu", init_scale=2.0**14)
for step in range(12):
    x = torch.randn(32, 6)
    loss = (net(x) - x[:, :1]).square().mean()
    opt.zero_grad()
    grown.scale(loss).backward()
    opt.step()
bad = not torch.isfinite(loss)
"""
)


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.mark.parametrize(
    ("text", "remedy", "line"),
    [
        pytest.param(NAMED, "guarded-division", "/ max(rows - 1, 1)", id="a size that has a name"),
        pytest.param(COUNTED, "guarded-division", "/ max(many, 1)", id="a count that was read"),
        pytest.param(SWITCHED_OFF, "log-floor", ".mean(-1).clamp_min(", id="a power of an exact 0"),
        pytest.param(PAST, "scaler-step", "grown.step(opt); grown.update()", id="past the scaler"),
    ],
)
def test_it_is_cured_at_its_line(text: str, remedy: str, line: str, tmp_path: Path) -> None:
    report, tried = proof(tmp_path, text)
    assert report.proved is not None, (report.remark, tried)
    assert report.proved.remedy == remedy, tried
    assert report.patch is not None and line in report.patch, report.patch


def test_a_rate_that_makes_up_for_a_loss_scale_is_no_cure(tmp_path: Path) -> None:
    _, tried = proof(tmp_path, PAST)
    rates = [one for name, one in tried.items() if name.endswith("rate")]
    assert rates and all(one.verdict in ("unclear", "failed") for one in rates), rates


@pytest.mark.parametrize(
    ("given", "divisor", "size", "number"),
    [
        ("n = x.size(0)", "n - 1", True, True),
        ("n, d = x.shape", "(n - 1) * d", True, True),
        ("n = len(x)\n    m = n - 1", "m", True, True),
        ("n = 2.0", "n", False, True),
        ("n = x.sum()", "n", False, False),
        ("n = len(x)\n    n = x.sum()", "n", False, False),  # one of the two is a tensor
        ("for n in x: pass", "n", False, False),
        ("pass", "x", False, False),  # a parameter may be anything
        ("n = len(x)\n    n += x.mean()", "n", False, False),
        ("n = n", "n", False, False),
    ],
)
def test_what_a_name_was_given_says_whether_it_is_a_size(
    given: str, divisor: str, size: bool, number: bool
) -> None:
    text = f"import torch\ndef f(x):\n    {given}\n    return x / ({divisor})\n"
    site = SourceSite("f.py", text, len(text.splitlines()))
    node = argument(site.operations("div")[0], site, 1, "other")
    assert node is not None
    assert (is_size(node, site), is_number(node, site)) == (size, number)
