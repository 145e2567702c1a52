"""A variance as a difference of two means: found in the ways it is written, and nothing else is."""

import pytest
import torch

from stayfinite.remedies.source import SourceSite, edited
from stayfinite.remedies.two_pass_variance import _variance

FORMS = {  # what is written, and the line that becomes a variance
    "products": "m = x.mean(0)\nv = (x * x).mean(0) - m * m",
    "powers": "m = x.mean(dim=0, keepdim=True)\nv = x.pow(2).mean(dim=0, keepdim=True) - m ** 2",
    "names": "s = x ** 2\ne = s.mean(-1)\nm = torch.mean(x, -1)\nv = e - m.pow(2)",
    "at once": "v = torch.mean(torch.square(x), dim=1) - torch.mean(x, dim=1) ** 2",
    "all of it": "v = (x ** 2).mean() - x.mean() ** 2",
    "inside": "v = torch.relu(x.square().mean((0, 1)) - x.mean((0, 1)).square())",
    "call": "m = x.mean(1, True)\nv = torch.sub(x.square().mean(1, True), m.square())",
}
OTHERS = {
    "other dims": "m = x.mean(1)\nv = (x * x).mean(0) - m * m",
    "another tensor": "m = y.mean(0)\nv = (x * x).mean(0) - m * m",
    "given anew": "m = x.mean(0)\nx = x + 1\nv = (x * x).mean(0) - m * m",
    "a sum": "v = (x * x).sum(0) - x.mean(0) ** 2",
    "a cube": "v = (x ** 3).mean(0) - x.mean(0) ** 2",
    "the other way round": "v = x.mean(0) ** 2 - (x * x).mean(0)",
    "random": "v = (torch.rand(3) ** 2).mean() - torch.rand(3).mean() ** 2",
}


def rewritten(source: str) -> str:
    text = "import torch\n" + source + "\n"
    site = SourceSite("a.py", text, text.count("\n"))
    edits = [
        site.replace(n, made) for n in site.operations("sub") if (made := _variance(n, site)) is not None
    ]
    return edited(text, edits)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_number_and_never_negative(form: str) -> None:
    text = rewritten(FORMS[form])
    assert ".var(" in text and "unbiased=False" in text
    for scale, offset in ((1.0, 0.0), (1e-2, 1e3)):
        x = (torch.randn(64, 32, dtype=torch.float64) * scale + offset).requires_grad_()
        exact, found = {"x": x}, {"x": x.detach().float()}
        exec(FORMS[form], {"torch": torch}, exact)
        exec(text, {}, found)
        assert bool((found["v"] >= 0).all())
        torch.testing.assert_close(found["v"].double(), exact["v"], rtol=1e-2, atol=0.0)
        same = {"x": x}
        exec(text, {}, same)
        torch.testing.assert_close(same["v"], exact["v"], rtol=1e-4, atol=1e-10)
        one, two = (torch.autograd.grad(v["v"].sum(), x, retain_graph=True)[0] for v in (exact, same))
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_variance_is_left_alone(other: str) -> None:
    assert ".var(" not in rewritten(OTHERS[other])
