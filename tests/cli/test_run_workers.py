"""Workers of a DataLoader are copies of a script that is guarded, and train nothing themselves."""

from __future__ import annotations

from pathlib import Path

from cli.running import guarded, plain

TRANSFORMED = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    torch.manual_seed(0)

    class Rows(Dataset):
        def __init__(self):
            self.transform = nn.Sequential(nn.Hardtanh(-9.0, 9.0), nn.Identity())  # as those of torchvision are
        def __len__(self):
            return 16
        def __getitem__(self, number):
            return self.transform(torch.full((4,), float(number)))

    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    for batch in DataLoader(Rows(), 4, num_workers=1):
        loss = net(batch).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
"""


def test_a_transform_that_is_a_module_begins_no_guard_in_a_worker(tmp_path: Path) -> None:
    alone = plain(tmp_path, TRANSFORMED)
    done = guarded(tmp_path, TRANSFORMED)
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")
    assert not (tmp_path / "stayfinite-runs").exists(), "a record that nobody asked for is taken away"
