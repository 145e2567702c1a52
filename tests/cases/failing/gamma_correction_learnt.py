# causes: SQRT_POW_GRAD_AT_ZERO
import torch
from torch import nn


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.gamma = nn.Parameter(torch.full((2, 1, 1), 0.45))

    def forward(self, image):
        light = self.conv(image).pow(2) * (image > 0.3)
        return light**self.gamma  # birth


torch.manual_seed(0)
model = Gamma()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    image = torch.rand(4, 1, 8, 8)
    loss = (model(image) - 0.5).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
