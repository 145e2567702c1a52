# causes: LR_DIVERGENCE
# exit: 1
"""A hand-written update at an absurd rate; the log line raises before any tensor is NaN."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(0)
net = torch.nn.Linear(8, 5)
lr = 1e6
total = 0.0
for step in range(40):
    x, y = torch.randn(16, 8), torch.randint(0, 5, (16,))
    net.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(p.grad, alpha=-lr)  # birth
    total += loss.item()
    if step % 5 == 4:
        mean = total / 5
        print(f"step {step} loss {mean:.2f} ppl {math.exp(mean):.1f}")
        total = 0.0
