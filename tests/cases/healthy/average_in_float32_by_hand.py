import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 1))
shadow = [p.detach().clone() for p in model.parameters()]
serve = [p.detach().clone().bfloat16() for p in model.parameters()]  # overwritten, not averaged
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _step in range(100):
    x = torch.randn(32, 10)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for s, b, p in zip(shadow, serve, model.parameters(), strict=False):
            s.lerp_(p, 0.01)
            b.copy_(p)
