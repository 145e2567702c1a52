# accepts: empty-rows
import torch
import torch.nn as nn

torch.manual_seed(0)


def attend(q, k, v, pad):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(pad[:, None, :], float("-inf"))
    return scores.softmax(dim=-1) @ v


proj = nn.Linear(8, 8)
x = torch.randn(3, 5, 8)
pad = torch.zeros(3, 5, dtype=torch.bool)
pad[1] = True
h = proj(x)
out = attend(h, h, h, pad)
loss = out[0].pow(2).mean() + out[1].pow(2).mean()
loss.backward()
bad = torch.isnan(loss).item()
