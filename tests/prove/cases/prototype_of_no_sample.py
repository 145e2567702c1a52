# accepts: guarded-mean
import torch
import torch.nn as nn

torch.manual_seed(0)

encoder = nn.Linear(6, 4)
optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
for step in range(4):
    samples, labels = torch.randn(18, 6), torch.arange(18) % 3
    if step == 2:
        labels = labels.clamp(max=1)
    found = encoder(samples)
    prototypes = torch.stack([found[labels == k].mean(0) for k in range(3)])
    loss = nn.functional.cross_entropy(-torch.cdist(found, prototypes), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
bad = not all(bool(torch.isfinite(p).all()) for p in encoder.parameters())
