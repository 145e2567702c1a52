# causes: ATTN_FULLY_MASKED
import torch
from torch import nn

torch.manual_seed(0)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, adjacency):
        scores = self.q(x) @ self.k(x).T / 8**0.5
        scores = scores.masked_fill(~adjacency, float("-inf"))
        return torch.softmax(scores, -1) @ x  # birth


net = Attend()
adjacency = torch.rand(6, 6) > 0.3
adjacency[2] = False
loss = net(torch.randn(6, 8), adjacency).pow(2).mean()
loss.backward()
