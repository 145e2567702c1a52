# causes: BF16_PRECISION
import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
teacher = copy.deepcopy(student).bfloat16().requires_grad_(False)  # birth
opt = torch.optim.SGD(student.parameters(), 0.1)
for _ in range(60):
    x = torch.randn(32, 8)
    loss = (student(x) - x.flip(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast.bfloat16(), 0.001)
