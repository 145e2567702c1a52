# causes: STATE_POISONED FP16_OVERFLOW DATA_SCALE DATA_NONFINITE BAD_BATCH_SPIKE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for step in range(8):
    x = torch.randn(8, 4)
    if step == 4:
        x[0, 0] = 3e38
    loss = net(x * 2).pow(2).mean()  # birth
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
