# causes: EXP_OVERFLOW LR_DIVERGENCE
import torch
from torch import nn

torch.manual_seed(0)


class Cell(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, n) * 0.8)
        self.u = nn.Linear(3, n)
        self.out = nn.Linear(n, 1)

    def forward(self, x):
        h = torch.zeros(x.shape[0], self.w.shape[0])
        for t in range(x.shape[1]):
            h = h @ self.w + self.u(x[:, t])  # birth
        return self.out(h)


model = Cell(24)
opt = torch.optim.Adam(model.parameters(), 1e-3)
for _step in range(4):
    x, y = torch.randn(8, 90, 3), torch.randn(8, 1)
    loss = nn.functional.mse_loss(model(x), y)  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
