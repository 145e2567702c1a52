# causes: LOG_DOMAIN
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _it in range(12):
    x = torch.randn(32, 5)
    prob = torch.relu(net(x))
    prob = prob / (prob.sum(1, keepdim=True) + 1e-6)
    observed = torch.rand(32, 4) < 0.5
    # only what was observed counts, and among it are zeros
    nll = torch.where(observed, -torch.log(prob), torch.zeros_like(prob))  # birth
    loss = nll.sum() / observed.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
