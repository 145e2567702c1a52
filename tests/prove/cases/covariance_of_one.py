# accepts: guarded-division
import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(6, 4)
optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
samples = torch.randn(25, 6)


def covariance(features):
    centred = features - features.mean(0, keepdim=True)
    return centred.T @ centred / (features.size(0) - 1)


for batch in samples.split(8):
    loss = (covariance(encoder(batch)) - torch.eye(4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
bad = not all(bool(torch.isfinite(p).all()) for p in encoder.parameters())
