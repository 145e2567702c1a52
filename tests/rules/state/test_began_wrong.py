"""Weights that were wrong before the first step, from a file that a script reads by itself: no batch, and no input."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.watched import incidents_of

_TABLE = """
    import numpy as np
    torch.manual_seed(0)
    table = np.random.RandomState(0).randn(20, 4).astype(np.float32)
    table[7, 2] = VALUE
    class Classifier(nn.Module):
        def __init__(self, vectors):
            super().__init__()
            self.words = nn.Embedding(22, 4)
            weights = torch.zeros(22, 4)
            weights[2:] = vectors
            self.words.weight = nn.Parameter(weights, requires_grad=False)
            self.head = nn.Linear(4, 2)
        def forward(self, x):
            return self.head(self.words(x).sum(1))
    net = Classifier(torch.from_numpy(table))
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
    for i in range(3):
        loss = F.cross_entropy(net(torch.arange(22).view(2, 11)), torch.tensor([0, 1])) * 1.0
        opt.zero_grad(); loss.backward(); opt.step()
"""


def test_a_nan_in_a_table_of_vectors_is_in_the_weights_and_in_no_batch(tmp_path: Path) -> None:
    incident = incidents_of(_TABLE.replace("VALUE", "float('nan')"), tmp_path)[0]
    first = incident.findings[0]
    assert first.code == "STA046" and "words.weight held 1 NaN and 0 Inf" in first.message, incident.findings
    assert "DAT001" not in {finding.code for finding in incident.findings}
    assert incidents_of(_TABLE.replace("VALUE", "0.5"), tmp_path) == []


_READ = """
    import numpy as np
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 1))
    numbers = np.random.RandomState(0).randn(27).astype(np.float32) * 0.3
    numbers[NUMBERS] = VALUE
    net[0].weight.data.copy_(torch.from_numpy(numbers).view_as(net[0].weight))
    opt = torch.optim.Adam(net.parameters(), 0.01)
    for i in range(3):
        loss = net(torch.randn(4, 1, 8, 8)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize(("numbers", "cause"), [("3", "CHECKPOINT_CORRUPT"), (":", "UNINITIALIZED_MEMORY")])
def test_an_absurd_weight_of_a_reader_of_ones_own(tmp_path: Path, numbers: str, cause: str) -> None:
    script = _READ.replace("NUMBERS", numbers).replace("VALUE", "1e37")
    findings = incidents_of(script, tmp_path)[0].findings
    assert (findings[0].code, findings[0].cause) == ("STA046", cause)
    assert "0.weight held 1e+37 before the first step" in findings[0].message
    assert "DAT011" not in {finding.code for finding in findings}, "a weight is no input"
    assert incidents_of(script.replace("1e37", "0.4"), tmp_path) == []


def test_a_nan_of_the_data_is_not_the_weights(tmp_path: Path) -> None:
    script = _READ.replace("numbers[NUMBERS] = VALUE", "pass").replace(
        "loss = net(torch.randn(4, 1, 8, 8))",
        "x = torch.randn(4, 1, 8, 8); x[1, 0, 0, 0] = float('nan'); loss = net(x)",
    )
    assert "STA046" not in {f.code for incident in incidents_of(script, tmp_path) for f in incident.findings}
