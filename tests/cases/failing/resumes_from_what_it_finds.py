# causes: LOG_DOMAIN
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
last = Path(tempfile.gettempdir(), "stayfinite-case-of-a-resume.pt")
net, first = nn.Linear(4, 4), 0
opt = torch.optim.SGD(net.parameters(), 0.05)
if last.exists():
    saved = torch.load(last)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    first = saved["step"] + 1
data = torch.rand(20, 16, 4) + 0.5
data[11, 3] = 0.0
for step in range(first, 20):
    loss = (net(data[step]) - data[step].log()).square().mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, last)
last.unlink()
