# causes: MASK_VALUE
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
policy = nn.Linear(8, 5)
opt = torch.optim.SGD(policy.parameters(), 0.1)
legal = torch.tensor([True, True, True, True, False])
for _ in range(3):
    scores = policy(torch.randn(4, 8)).masked_fill(~legal, float("-inf"))  # birth
    loss = F.cross_entropy(scores, torch.tensor([0, 1, 2, 3]), label_smoothing=0.1)  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
