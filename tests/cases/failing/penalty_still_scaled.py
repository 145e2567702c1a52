# causes: SCALER_MISUSE
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 1))
opt = torch.optim.Adam(critic.parameters(), 2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for _ in range(20):
    real, fake = torch.randn(16, 3) + 2, torch.randn(16, 3)
    between = (0.5 * (real + fake)).requires_grad_()
    (slope,) = torch.autograd.grad(scaler.scale(critic(between).sum()), between, create_graph=True)  # birth
    penalty = (slope.square().sum(1).add(1e-12).sqrt() - 1).square().mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
