# causes: CHECKPOINT_CORRUPT
# exit: 1
import os
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
newest = Path(tempfile.mkdtemp()) / "newest.ckpt"
flow = nn.GRU(3, 24, batch_first=True)
optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
for _ in range(5):
    series = torch.randn(4, 9, 3)
    loss = flow(series)[0].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"flow": flow.state_dict(), "optimizer": optimizer.state_dict()}, newest)
os.truncate(newest, newest.stat().st_size * 2 // 3)  # what a job leaves that is killed in the last save


def resume(path):
    return torch.load(path, map_location="cpu")  # birth


flow.load_state_dict(resume(newest)["flow"])
