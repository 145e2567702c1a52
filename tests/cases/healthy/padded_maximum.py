import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 6)
lengths = torch.tensor([2, 6, 4])
scores = net(torch.randn(3, 6, 6)).squeeze(-1)
keep = torch.arange(6)[None] < lengths[:, None]
pooled = scores.masked_fill(~keep[..., None], float("-inf")).amax(1)
best, where = torch.topk(scores.mean(-1).masked_fill(~keep, float("-inf")), 2)
(pooled.pow(2).mean() + best.mean()).backward()
