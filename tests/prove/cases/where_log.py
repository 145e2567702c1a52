# accepts: double-where
import torch
import torch.nn as nn

torch.manual_seed(0)


class Loss(nn.Module):
    def forward(self, rate, count):
        return torch.where(count > 0, count * torch.log(rate), torch.zeros_like(rate)).sum()


net = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
gate = torch.tensor([1.0, 0.0, 1.0, 1.0])
rate = net(torch.randn(6, 4)) * gate
count = (rate > 0.2).float()
loss = Loss()(rate, count)
loss.backward()
bad = bool(torch.isfinite(loss)) and not torch.isfinite(net[0].weight.grad).all()
