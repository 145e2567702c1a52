# accepts: eps-inside norm
import torch
from torch import nn

torch.manual_seed(0)


class PseudoHuber(nn.Module):
    """distance of predicted and true points, linear far away"""

    def forward(self, pred, target):
        dist = ((pred - target) ** 2).sum(-1).sqrt()
        return torch.where(dist < 1.0, 0.5 * dist**2, dist - 0.5).mean()


decoder = nn.Linear(8, 2)
nn.init.zeros_(decoder.bias)
crit = PseudoHuber()
opt = torch.optim.Adam(decoder.parameters(), lr=1e-2)
bad = False
for step in range(25):
    code = torch.randn(32, 8)
    target = torch.randn(32, 2)
    if step == 10:
        code[4] = 0.0
        target[4] = decoder.bias.detach()  # predicted exactly
    loss = crit(decoder(code), target)
    opt.zero_grad()
    loss.backward()
    grads = [p.grad for p in decoder.parameters()]
    bad = bad or not all(torch.isfinite(g).all().item() for g in grads)
    opt.step()
