# accepts: logits-to-loss
import torch
from torch import nn

torch.manual_seed(3)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, z):
        return torch.sigmoid(self.net(z))


def reconstruction(p, x):
    return -(x * torch.log(p) + (1 - x) * torch.log(1 - p)).sum(-1).mean()


decoder = Decoder()
optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)
bad = False
for step in range(20):
    z = torch.randn(16, 8)
    if step == 12:
        z[4] *= 500  # a code far outside
    x = (torch.rand(16, 32) > 0.5).float()
    loss = reconstruction(decoder(z), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not torch.isfinite(loss).item()
