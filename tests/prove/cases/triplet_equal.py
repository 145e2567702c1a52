# accepts: eps-inside norm normalize-eps
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)


def triplet_loss(anchor, positive, negative, margin=0.2):
    d_ap = torch.norm(anchor - positive, p=2, dim=1)
    d_an = torch.sqrt(torch.sum((anchor - negative) ** 2, dim=1))
    return F.relu(d_ap - d_an + margin).mean()


bad = False
for step in range(15):
    a = torch.randn(16, 10)
    p = a + 0.1 * torch.randn(16, 10)
    n = torch.randn(16, 10)
    if step == 8:
        n[5] = a[5]  # the same picture twice in the data set, with two labels
    loss = triplet_loss(encoder(a), encoder(p), encoder(n))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not all(torch.isfinite(p.grad).all().item() for p in encoder.parameters())
