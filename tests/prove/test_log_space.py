"""Log space found behind names, choices of values and functions of the file: the same numbers, and a gradient."""

import pytest
import torch

from stayfinite.remedies.logarithm import Logarithm
from stayfinite.remedies.source import SourceSite, argument

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n"
DENSITY = "def density(y, mu, s):\n    return torch.exp(-0.5 * ((y - mu) / s) ** 2) / (s * math.sqrt(2 * math.pi))\n"


def rewritten(source: str) -> tuple[str, str | None]:
    """The last logarithm of a source as it stands there, and as log space has it."""
    site = SourceSite("x.py", HEAD + source, (HEAD + source).count("\n"))
    node = site.calls("log")[0]
    inside = argument(node, site)
    assert inside is not None
    return site.code(node), Logarithm(site, node, []).of(inside)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (
            "p = torch.softmax(x, -1)\npt = p.gather(1, i[:, None]).squeeze(1)\nr = torch.log(pt)\n",
            "log_softmax",
        ),
        ("p = x.softmax(-1)\nr = torch.log(p[:, 1])\n", "log_softmax"),
        ("e = torch.exp(x)\nd = e.diagonal()\nr = torch.log(d / e.sum(dim=1))\n", "logsumexp"),
        (f"{DENSITY}r = torch.log(torch.sum(w * density(x, m, s=s), dim=1))\n", "logsumexp"),
        ("r = torch.log(torch.sigmoid(x).reshape(-1))\n", "logsigmoid"),
        ("h = torch.exp(x)\nr = torch.log(torch.cumsum(h, dim=0))\n", "logcumsumexp"),
        ("r = torch.log(torch.special.i0(x))\n", "i0e"),
        ("r = torch.log(torch.cosh(x))\n", "softplus"),
        ("r = torch.log(torch.exp2(x))\n", "x"),
        ("r = torch.log(torch.special.ndtr(x))\n", "log_ndtr"),
        ("r = torch.log(torch.erfc(x))\n", "log_ndtr"),
        ("a = torch.tanh(x)\nr = torch.log(1 - a.pow(2))\n", "softplus"),
        ("r = torch.log(torch.sigmoid(x).prod(dim=1))\n", ".sum(dim=1)"),
        ("r = torch.log(torch.prod(torch.sigmoid(x), 1))\n", "torch.sum"),
        ("r = torch.log(torch.sigmoid(x + 1) - torch.sigmoid(x))\n", "expm1"),
        ("r = torch.log(torch.exp(x).sum())\n", "flatten"),
        ("r = x.exp().sum(axis=1, keepdim=True).log()\n", "logsumexp(x, 1, keepdim=True)"),
        ("r = torch.log(torch.mean(torch.exp(x), 1))\n", "size(1)"),
        ("e = torch.exp(x)\nr = torch.log(e.mean())\n", "numel"),
        ("r = torch.log(torch.exp(x[0]) + torch.exp(x[1]))\n", "logaddexp"),
        (
            "e = torch.exp(x)\na = torch.diag(e)\nb = e.sum(1) - a\nr = torch.log(a / (a + b))\n",
            "- torch.logsumexp(x, 1)",
        ),
        ("r = torch.log(1 + torch.exp(x).sum(1))\n", "softplus"),
        ("m = x > 0\nr = torch.log(torch.exp(x).masked_fill(m, 0.0).sum())\n", "-inf"),
        ("m = x > 0\nr = torch.log(torch.where(m, torch.exp(x), torch.zeros_like(x)).sum())\n", "-inf"),
        ("r = torch.exp(x).flip(0).cumsum(0).flip(0).log()\n", "logcumsumexp"),
        ("r = torch.log(torch.cat([torch.exp(x), torch.exp(-x)], 1).sum(1))\n", "cat([x, (-x)], 1)"),
        ("k = (w > 0.5).double()\nr = torch.log((torch.exp(x) * k).sum(1) + 1e-12)\n", "logsumexp"),
    ],
)
def test_the_same_numbers_and_gradients(source: str, word: str) -> None:
    before, after = rewritten(source)
    assert after is not None and word in after
    torch.manual_seed(0)
    names = {
        "x": torch.randn(4, 4, dtype=torch.float64, requires_grad=True),
        "i": torch.randint(0, 4, (4,)),
        "w": torch.rand(4, dtype=torch.float64),
        "m": torch.randn(4, dtype=torch.float64),
        "s": torch.rand(4, dtype=torch.float64) + 0.5,
    }
    exec(HEAD + source, names)
    one, two = eval(before, names), eval(after, names)
    torch.testing.assert_close(one, two)
    first, second = (torch.autograd.grad(value.sum(), names["x"])[0] for value in (one, two))
    torch.testing.assert_close(first, second)
    with torch.no_grad():
        names["x"].mul_(2e3)  # where the plain form has nothing left
    exec(HEAD + source, names)
    assert bool(eval(after, names).isfinite().all()) and not bool(eval(before, names).isfinite().all())


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    a = a + 1\n    return torch.exp(a)\nr = torch.log(f(x))\n",
        "def f(a):\n    return torch.exp(a) + layer(a)\nr = torch.log(f(x))\n",
        "def f(a, b=2):\n    return torch.exp(a)\nr = torch.log(f(x))\n",
        "def f(a):\n    return torch.exp(a * k)\ndef g(x, k):\n    return torch.log(f(x))\n",
        "def f(a):\n    return torch.exp(a)\nr = torch.log(f(drawn()))\n",
        "r = torch.log(p.index_select(0, drawn()))\n",
        "r = torch.log(torch.cosh(layer(x)))\n",
        "r = torch.log(1 - layer(x).tanh() ** 2)\n",
        "r = torch.log(torch.sigmoid(x) - torch.tanh(x))\n",
    ],
)
def test_what_might_mean_something_else_is_left_alone(source: str) -> None:
    _, after = rewritten(source)
    assert after is None


def test_one_minus_an_exponential_near_one() -> None:
    before, after = rewritten("r = torch.log(1 - torch.exp(-x))\n")
    assert after is not None
    names = {"x": torch.tensor([1e-20, 0.5], dtype=torch.float64)}
    exec(HEAD, names)
    one, two = eval(before, names), eval(after, names)
    assert one[0] == -torch.inf and two[0] == pytest.approx(-46.0517018) and one[1] == pytest.approx(two[1])


def test_an_eps_that_has_a_name_is_not_needed_either() -> None:
    _, after = rewritten("eps = 1e-8\np = torch.sigmoid(x)\nr = torch.log(1 - p + eps)\n")
    assert after == "F.logsigmoid(-x)"
    _, after = rewritten("eps = 0.5\np = torch.sigmoid(x)\nr = torch.log(p + eps)\n")
    assert after is None


@pytest.mark.parametrize(
    ("source", "dims"),
    [
        ("a = (w > 0.3).double()\nr = torch.log(a @ torch.exp(x[0]))\n", 1),
        ("r = torch.log(torch.matmul(torch.exp(x[0]), torch.rand(4, 3, dtype=torch.float64)))\n", 1),
        ("a = torch.rand(3, 4, dtype=torch.float64)\nr = torch.log(a.mm(torch.exp(x)))\n", 2),
    ],
)
def test_a_matrix_times_exponentials(source: str, dims: int) -> None:
    """How many dims the exponentials have is nowhere in the source: without it, nothing is written."""
    site = SourceSite("x.py", HEAD + source, (HEAD + source).count("\n"))
    node = site.calls("log")[0]
    inside = argument(node, site)
    assert inside is not None
    assert Logarithm(site, node, []).of(inside) is None
    after = Logarithm(site, node, [], dims).of(inside)
    assert after is not None and "logsumexp" in after
    torch.manual_seed(0)
    names = {"x": torch.randn(4, 4, dtype=torch.float64), "w": torch.rand(4, dtype=torch.float64)}
    exec(HEAD + source, names)
    torch.manual_seed(1)
    one = eval(site.code(node), names)
    torch.manual_seed(1)
    torch.testing.assert_close(one, eval(after, names))


def test_what_is_looked_at_in_vain_leaves_no_name_behind() -> None:
    source = "e = torch.exp(layer(x))\nr = torch.log(e.mean((0, 1)))\n"
    site = SourceSite("x.py", HEAD + source, (HEAD + source).count("\n"))
    node = site.calls("log")[0]
    inside = argument(node, site)
    assert inside is not None
    logarithm = Logarithm(site, node, [])
    assert logarithm.of(inside) is None and not logarithm.kept
