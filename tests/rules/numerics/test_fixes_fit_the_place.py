"""What a report advises fits the line it names, and what it calls data is data."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained
from rules.watched import incidents_of

ADVICE = {
    "directions that were never filled in": (
        "rays = torch.zeros(2, 3)\nw = nn.Parameter(torch.ones(3))\n"
        "loss = ((rays / torch.norm(rays, dim=-1, keepdim=True)) * w).sum()",
        "why these vectors are 0 where they are read",
        "bounds the gradient",
    ),
    "an energy is no log-variance": (
        "energy = nn.Parameter(torch.tensor([-120.0, 1.0]))\nloss = torch.exp(-energy).sum()",
        "log space",
        "log_var",
    ),
    "an exponential that only a logarithm sees": (
        "x = nn.Parameter(torch.tensor([120.0, 1.0]))\nhazard = torch.exp(x)\nloss = torch.log(hazard @ torch.ones(2))",
        "stay in log space, as its logarithm is taken later",
        "clamp the exponent",
    ),
    "an exponential that a ratio cancels": (
        "x = nn.Parameter(torch.tensor([120.0, 1.0]))\nw = torch.exp(x)\nt = w.sum()\nloss = (w / t)[0]",
        "use torch.softmax",
        "clamp the exponent",
    ),
    "an exponential that is a term of the loss": (
        "x = nn.Parameter(torch.tensor([120.0, 1.0]))\nr = torch.exp(x)\nloss = (r - 2.0 * r.log())[0]",
        "clamp the exponent",
        "logarithm is taken later",
    ),
    "a log-variance is one": (
        "logvar = nn.Parameter(torch.tensor([-120.0, 1.0]))\nloss = (2.0 * torch.exp(-logvar)).mean()",
        "log_var",
        "logsumexp",
    ),
    "a focal weight is no mutual information": (
        "p = torch.sigmoid(nn.Parameter(torch.tensor([120.0, 0.0])))\nloss = ((1 - p) ** 0.5).mean(); loss.backward()",
        "clamp_min",
        "mutual",
    ),
    "a target that is given is a weight of its own logarithm": (
        "t = torch.tensor([1.0, 0.0])\nq = torch.log_softmax(nn.Parameter(torch.zeros(2)), -1)\n"
        "loss = (t * (t.log() - q)).sum()",
        "xlogy",
        "log_softmax",
    ),
    "a count of nothing over what is expected": (
        "y = torch.tensor([0.0, 3.0])\nmu = F.softplus(nn.Parameter(torch.zeros(2))) + 1e-3\n"
        "loss = (y * torch.log(y / mu)).sum()",
        "torch.xlogy(y, y / mu)",
        "logsumexp",
    ),
    "a time of zero is no weight": (
        "t = torch.tensor([1.0, 0.0])\nk = nn.Parameter(torch.tensor(0.5))\nloss = ((k - 1) * t.log()).sum()",
        "no model computed them: put a floor",
        "xlogy",
    ),
    "a weight that the script set to 0 is no noise": (
        "w = torch.rand(8); w[3] = 0.0\nk = nn.Parameter(torch.tensor(0.5))\nloss = (k * w.log()).mean()",
        "no model computed them: put a floor",
        "draw noise",
    ),
    "noise that came out as 0": (
        "u = torch.rand(40000, dtype=torch.float16)\nk = nn.Parameter(torch.tensor(0.5))\nloss = (k + u.log()).mean()",
        "draw noise that cannot be 0",
        "no model computed them",
    ),
    "a magnitude that is exactly 0 is no probability": (
        "gain = nn.Parameter(torch.ones(3, 1))\ntone = torch.randn(3, 8) * 4\ntone[1] = 0\n"
        "loss = (tone * gain).square().sum(1).log().sum()",
        "this is a magnitude",
        "log_softmax",
    ),
    "a power that was rounded to 0 is none that is exactly 0": (
        "x = nn.Parameter(torch.tensor([1e-30, 4.0]))\nloss = (x ** 2).log().sum()",
        "cannot see 0",
        "this is a magnitude",
    ),
    "a covariance of one sample divides by n - 1": (
        "w = nn.Parameter(torch.ones(4))\nz = torch.randn(1, 4) * w\nrows = z.shape[0]\nz = z - z.mean(0)\n"
        "loss = (z.T @ z / (rows - 1)).square().sum()",
        "skip this term when rows < 2",
        "clamp it away from 0",
    ),
    "a mask over probabilities that leaves nothing of a sample": (
        "p = nn.Parameter(torch.zeros(2, 3)).softmax(-1)\nmask = torch.tensor([[1.0], [0.0]])\n"
        "loss = -(p * mask).sum(-1).log().mean()",
        "is a mask, leave out the samples",
        "cannot see 0",
    ),
    "eigenvalues below zero are rounding": (
        "x = nn.Parameter(torch.randn(24, 3))\nvalues = torch.linalg.eigh(x @ x.T)[0]\n"
        "loss = values.sqrt().sum(); loss.backward()",
        "add eps to the diagonal",
        "geometry",
    ),
    "a mask of booleans": (
        "p = nn.Parameter(torch.tensor([[3.0, -3.0]])).softmax(-1)\n"
        "loss = torch.logsumexp((p * (p > 0.1)).log() + 1, -1).sum(); loss.backward()",
        "zeros are those of the mask in the product",
        "log_softmax",
    ),
    "a value that was observed on the edge of a distribution": (
        "k = nn.Parameter(torch.tensor(1.5))\nx = torch.tensor([0.3, 1.0])\n"
        "loss = -torch.distributions.Beta(k, k).log_prob(x).mean()",
        "x.clamp(1e-6, 1 - 1e-6)",
        "cannot see 0",
    ),
    "a probability that is 0 by itself": (
        "p = nn.Parameter(torch.tensor([[300.0, 0.0]])).softmax(-1)\nloss = -(2.0 * p).log().mean()",
        "use F.log_softmax",
        "mask",
    ),
    "a power of negative numbers needs a base": (
        "x = nn.Parameter(torch.tensor([-2.0, 2.0]))\np = nn.Parameter(torch.tensor(2.5))\nloss = x.pow(p).sum()",
        "base positive",
        "geometry",
    ),
    "the domain of acosh begins at 1": (
        "x = nn.Parameter(torch.tensor([1.0, 2.0]))\nloss = torch.acosh(x).sum(); loss.backward()",
        "clamp(min=1 + 1e-6)",
        "1 - 1e-6",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_fix_fits_the_line(name: str, tmp_path: Path) -> None:
    source, said, not_said = ADVICE[name]
    found = explained(source, tmp_path)
    assert said in found.findings[0].fix, str(found)
    assert not_said not in found.findings[0].fix, str(found)


def test_a_hidden_activation_without_a_gradient_is_no_data(tmp_path: Path) -> None:
    source = """
        body, head = nn.Linear(4, 4), nn.Linear(4, 1)
        with torch.no_grad():
            body.weight.mul_(1e25)
            hidden = body(torch.randn(3, 4))
        loss = (head(hidden) ** 2).mean()
        loss.backward()
    """
    found = explained(source, tmp_path)
    assert found.step is not None and found.findings, str(found)
    assert "DATA_SCALE" not in found.causes, str(found)


def test_zeros_of_a_batch_are_no_mask(tmp_path: Path) -> None:
    """In the gradient of a layer they meet an infinity: that is no mask of the script's."""
    source = """
        x, weight = torch.tensor([[1.0, 0.5], [0.0, 0.0]]), nn.Parameter(torch.ones(1, 2))
        loss = torch.sqrt(nn.functional.linear(x, weight)).sum()
        loss.backward()
    """
    found = explained(source, tmp_path)
    assert found.findings and not any("a mask that multiplies" in one.message for one in found.findings), str(
        found
    )


def test_a_mask_that_keeps_the_element_is_not_to_blame(tmp_path: Path) -> None:
    kept = "x = nn.Parameter(torch.tensor([0.0, 4.0]))\nm = torch.tensor([True, False])\n"
    kept += "loss = torch.where(m, x.sqrt(), torch.zeros(2)).sum(); loss.backward()"
    assert explained(kept, tmp_path).causes[0] == "SQRT_POW_GRAD_AT_ZERO"
    left_out = kept.replace("[True, False]", "[False, True]")
    assert explained(left_out, tmp_path).causes[0] == "WHERE_UNSAFE_BRANCH"
    power = left_out.replace("x.sqrt()", "x.pow(0.5)")
    assert explained(power, tmp_path).causes[0] == "WHERE_UNSAFE_BRANCH"


def test_a_check_of_torch_is_no_guard_of_the_script(tmp_path: Path) -> None:
    source = """
        raw = nn.Parameter(torch.tensor(-1.0)); opt = torch.optim.SGD([raw], 0.1)
        scale = torch.sqrt(raw)
        loss = -torch.distributions.Normal(torch.tensor(0.0), scale).log_prob(torch.tensor(1.0))
        loss.backward(); opt.step()
    """
    causes = [f.cause for incident in incidents_of(source, tmp_path) for f in incident.findings]
    assert causes[0] == "DOMAIN_VIOLATION"
    assert "BLIND_GUARD" not in causes


LABELS = {
    "a target box of negative width": (
        "target = torch.tensor([0.5, -0.2])\nk = nn.Parameter(torch.ones(2))\nsize = target * 4\n"
        "loss = (k - size.sqrt()).square().sum()",
        "no model computed them",
        "learns from a sample",
    ),
    "a target ratio of the wrong sign": (
        "size = torch.tensor([[0.8, -0.2], [0.1, 0.5]])\nk = nn.Parameter(torch.ones(2))\n"
        "loss = (k - torch.log(size[:, 1] / 0.3)).abs().sum()",
        "corners in order",
        "learns from a sample",
    ),
    "a target without width": (
        "size = torch.tensor([[0.2, 0.0], [0.1, 0.5]])\nk = nn.Parameter(torch.ones(2))\n"
        "loss = (k - torch.log(size[:, 1] / torch.tensor([0.3, 0.3]))).abs().sum()",
        "check sizes where the samples are made",
        "the value that was given is 0",
    ),
    "a count of -999 is no scale": (
        "counts = torch.tensor([3.0, -999.0])\nk = nn.Parameter(torch.ones(2))\n"
        "loss = (torch.lgamma(counts + 1.0) * k).sum()",
        "a placeholder such as -1 or -999",
        "learns from a sample",
    ),
    "a gain of a label of 300": (
        "y = torch.tensor([300.0, 1.0])\nk = nn.Parameter(torch.ones(2))\nloss = (k * torch.pow(2, y)).sum()",
        "no model computed them",
        "out of scale",
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_what_was_given_is_repaired_where_it_is_made(name: str, tmp_path: Path) -> None:
    """No output is to be given another form, and no gradient is lost: the label is wrong."""
    source, fix, avoid = LABELS[name]
    found = explained(source, tmp_path)
    assert fix in found.findings[0].fix, found
    assert avoid in (found.findings[0].avoid or ""), found


@pytest.mark.parametrize(
    "computed",
    [
        "loss = nn.Parameter(torch.tensor([4.0, -0.2])).sqrt().sum()",
        "loss = torch.log(nn.Parameter(torch.tensor([4.0, -0.2]))).sum()",
        "loss = torch.pow(2, nn.Parameter(torch.tensor([300.0]))).sum()",
        # rounding, not a label: the difference of two means
        "x = torch.tensor([1e4, 1e4]) + 0.1\nk = nn.Parameter(torch.ones(1))\n"
        "loss = (k * (torch.tensor([1.0]) - (x / x).mean() * 1.00001).sqrt()).sum()",
    ],
)
def test_what_was_computed_keeps_the_advice_of_its_page(computed: str, tmp_path: Path) -> None:
    found = explained(computed, tmp_path)
    assert found.findings and found.findings[0].avoid is None, found


@pytest.mark.parametrize(
    "spread",
    [
        "r = torch.tensor([2.0])\nloss = (k * r.std()).sum()",
        "loss = nn.BatchNorm1d(2)(torch.ones(1, 2) * k).sum()",
    ],
)
def test_drop_last_is_for_a_short_last_batch(spread: str, tmp_path: Path) -> None:
    """A rollout of one step has no DataLoader, and a set of one sample no other batch."""
    found = explained("k = nn.Parameter(torch.ones(1))\n" + spread, tmp_path)
    assert "if this is the short last batch of a DataLoader" in found.findings[0].fix, found


@pytest.mark.parametrize("corner", [0.2, 0.4])
def test_a_box_in_centre_and_size_is_a_difference_of_corners_too(corner: float, tmp_path: Path) -> None:
    """The sum that its centre is made of is beside the difference, not before it."""
    found = explained(
        f"""
        corners = torch.tensor([[{corner}, 0.1, 0.2, 0.5], [0.1, 0.1, 0.4, 0.6]])
        priors = torch.full((4, 2), 0.3)
        xy = corners[torch.tensor([0, 1, 1, 0])]
        box = torch.cat([(xy[:, 2:] + xy[:, :2]) / 2, xy[:, 2:] - xy[:, :2]], 1)
        k = nn.Parameter(torch.ones(4, 2))
        loss = (k - torch.log(box[:, 2:] / priors) * 5).abs().mean()  #!
        """,
        tmp_path,
    )
    assert (found.findings[0].code, found.findings[0].line) == ("DAT014", found.marked[0]), found
