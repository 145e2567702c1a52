# accepts: eps-inside guarded-division
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
layer = nn.Linear(8, 3)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
bad = False
for epoch in range(10):
    adjacency = torch.ones(12, 12).triu(1)
    adjacency = adjacency + adjacency.t()
    if epoch == 6:
        adjacency[3] = adjacency[:, 3] = 0
    scale = adjacency.sum(1).pow(-0.5)
    mixed = scale[:, None] * adjacency * scale[None, :]
    loss = F.cross_entropy(mixed @ layer(torch.randn(12, 8)), torch.randint(0, 3, (12,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or bool(torch.isnan(loss))
