# causes: TOO_FEW_SAMPLES
"""A measure of dependence is normalised by its own parts. In the last batch of one, all of them are 0."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(65, 6)
encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(encoder.parameters(), 0.01)


def centred(values: torch.Tensor) -> torch.Tensor:
    kernel = torch.exp(-(values[:, None] - values[None]).pow(2).sum(-1))
    return kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()


for _ in range(2):
    for start in range(0, 65, 16):
        batch = inputs[start : start + 16]
        left, right = centred(encoder(batch)), centred(batch)
        shared = (left * right).sum()
        loss = -shared / (left.pow(2).sum().sqrt() * right.pow(2).sum().sqrt())  # birth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
