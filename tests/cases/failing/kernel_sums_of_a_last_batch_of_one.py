# causes: TOO_FEW_SAMPLES
"""An unbiased estimate divides by n * (n - 1); the last batch of an epoch holds one sample."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
encoder = nn.Linear(6, 3)
optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)


def spread(codes: torch.Tensor) -> torch.Tensor:
    n = codes.size(0)
    kernel = torch.exp(-torch.cdist(codes, codes).pow(2))
    return (kernel.sum() - n).div(n * (n - 1))  # birth


for _ in range(2):
    for batch in DataLoader(torch.randn(33, 6), batch_size=8):
        codes = encoder(batch)
        loss = codes.pow(2).mean() + spread(codes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
