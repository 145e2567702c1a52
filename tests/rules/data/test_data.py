"""Bad values that come from the data: traced snippets, explained by the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rules.traced import explained
from stayfinite.findings import TensorSummary
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.traced_birth import Operand

DATA_NONFINITE = {
    "a table with an empty cell": """
        import numpy as np
        x = torch.from_numpy(np.array([[1.0, np.nan], [2.0, 3.0]], dtype=np.float32))  #!
        loss = nn.Linear(2, 1)(x).mean(); loss.backward()
    """,
    "a list with nan": """
        x = torch.tensor([1.0, float("nan"), 2.0])  #!
        loss = (torch.ones(3, requires_grad=True) * x).sum(); loss.backward()
    """,
    "infinity from an array": """
        import numpy as np
        y = torch.as_tensor(np.array([np.inf, 1.0], dtype=np.float32))  #!
        loss = F.mse_loss(torch.zeros(2, requires_grad=True), y); loss.backward()
    """,
}

PREPROC_ZERO_RANGE = {
    "standardised silent clip": """
        wav = torch.zeros(1, 100); net = nn.Linear(100, 1)
        x = (wav - wav.mean()) / wav.std()  #!
        loss = net(x).sum(); loss.backward()
    """,
    "peak normalisation of silence": """
        wav = torch.zeros(2, 50); net = nn.Linear(50, 1)
        x = wav / wav.abs().max()  #!
        loss = net(x).sum(); loss.backward()
    """,
    "a constant column": """
        x = torch.randn(16, 3); x[:, 1] = 4.0; net = nn.Linear(3, 1)
        z = (x - x.mean(0)) / x.std(0)  #!
        loss = net(z).sum(); loss.backward()
    """,
    "min max over channels": """
        img = torch.rand(2, 3, 4, 4); img[1, 2] = 0.5; net = nn.Conv2d(3, 1, 3)
        lo, hi = img.amin((2, 3), keepdim=True), img.amax((2, 3), keepdim=True)
        loss = net((img - lo) / (hi - lo)).sum()  #!
        loss.backward()
    """,
}

LABEL_INVALID = {
    "a negative label": """
        loss = F.cross_entropy(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, -1, 2]))  #!
    """,
    "one_hot of too large a class": """
        y = F.one_hot(torch.tensor([0, 5, 2]), 4)  #!
    """,
    "a token beyond the vocabulary": """
        e = nn.Embedding(10, 4)
        out = e(torch.tensor([[1, 10]]))  #!
    """,
    "gather beyond the end": """
        p = torch.randn(2, 3, requires_grad=True)
        loss = p.gather(1, torch.tensor([[0], [3]])).sum()  #!
    """,
    "a box with negative width": """
        gt = torch.tensor([[10.0, 10.0, 5.0, 30.0], [1.0, 1.0, 4.0, 4.0]]); pred = torch.zeros(2, requires_grad=True)
        w = gt[:, 2] - gt[:, 0]
        loss = (pred - torch.log(w / 16)).pow(2).sum()  #!
        loss.backward()
    """,
    "a box without height": """
        gt = torch.tensor([[1.0, 7.0, 5.0, 7.0]]); pred = torch.zeros(1, requires_grad=True)
        h = gt[:, 3] - gt[:, 1]
        loss = (pred - torch.log(h)).abs().sum()  #!
        loss.backward()
    """,
    "a box that a crop has cut to a point": """
        corners = torch.tensor([[3, 4, 9, 9], [30, 30, 34, 38]]).float()
        true = ((corners - 2).clamp(0, 24) / 24); net = nn.Linear(4, 2)
        tw, th = true[:, 2] - true[:, 0], true[:, 3] - true[:, 1]
        w, h = net(true).exp().unbind(1)
        loss = (torch.atan(tw / th) - torch.atan(w / h)).square().mean()  #!
        loss.backward()
    """,
    "boxes of a batch, as shares of the image": """
        samples = [torch.tensor([3.0, 4.0, 9.0, 4.0 + 3 * (i != 5)]) / 24 for i in range(16)]
        boxes = torch.utils.data.default_collate(samples)
        w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        loss = (nn.Linear(4, 1)(boxes).squeeze(1) - w / h).square().mean()  #!
        loss.backward()
    """,
}

DATA_SCALE = {
    "a corrupt record": """
        x = torch.randn(8, 4); x[3] = 3e25; net = nn.Linear(4, 1)
        loss = net(x).pow(2).mean()  #!
        loss.backward()
    """,
    "raw byte counts in a squared loss": """
        x = torch.full((4, 2), 4e19); y = torch.zeros(4, 1); net = nn.Linear(2, 1)
        loss = F.mse_loss(net(x), y)  #!
        loss.backward()
    """,
    "raw targets": """
        y = torch.tensor([[1e20], [5.0]]); net = nn.Linear(2, 1)
        loss = F.mse_loss(net(torch.randn(2, 2)), y)  #!
        loss.backward()
    """,
}

TABLES = {
    "DATA_NONFINITE": DATA_NONFINITE,
    "PREPROC_ZERO_RANGE": PREPROC_ZERO_RANGE,
    "LABEL_INVALID": LABEL_INVALID,
    "DATA_SCALE": DATA_SCALE,
}
SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in TABLES.items()
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_line_of_birth(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)


def test_a_batch_is_counted_by_itself_not_by_the_table_that_it_comes_from(tmp_path: Path) -> None:
    source = """
        import numpy as np
        cells = np.ones((640, 8), dtype=np.float32)
        cells[300, 2] = np.nan
        table = torch.from_numpy(cells)
        loader = iter(torch.utils.data.DataLoader(table, 16))
        batch = [next(loader) for _ in range(19)][-1]
        loss = batch.sum()
    """
    result = explained(source, tmp_path)
    assert result.step is not None
    held = Operand(TensorSummary("batch[0]", (16, 8), "float32", nan=1))
    finding = explain(replace(result.step, batch=(held,)))[0]
    assert finding.message == "batch[0] holds 1 NaN and 0 Inf among 128 values"


def test_a_column_that_is_bad_in_every_sample_is_no_bad_sample(tmp_path: Path) -> None:
    """A running mean in numpy that has met an Inf: nothing is wrong with the samples that come now."""
    source = """
        import numpy as np
        mean = np.array([0.0, np.nan, 0.0])
        x = torch.from_numpy(np.arange(36.0).reshape(12, 3) - mean).float()  #!
        loss = nn.Linear(3, 1)(x).mean(); loss.backward()
    """
    first = explained(source, tmp_path).findings[0]
    assert first.code == "DAT001" and "1 of 3 columns are NaN in every sample" in first.message
    assert "running mean" in (first.fix or "")
