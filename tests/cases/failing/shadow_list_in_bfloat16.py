# causes: BF16_PRECISION
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 1))
shadow = [p.detach().clone().to(torch.bfloat16) for p in model.parameters()]  # birth
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
w = torch.randn(10, 1)
for _step in range(120):
    x = torch.randn(64, 10)
    loss = nn.functional.mse_loss(model(x), x @ w)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for s, p in zip(shadow, model.parameters(), strict=False):
            s.mul_(0.999).add_(p, alpha=0.001)  # birth
