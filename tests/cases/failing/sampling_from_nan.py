# causes: SECONDARY_ERROR EMPTY_REDUCTION
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 6)
allowed = torch.ones(3, 6)
allowed[1] = 0.0
weights = torch.sigmoid(net(torch.randn(3, 4))) * allowed
probs = weights / weights.sum(1, keepdim=True)  # birth
token = torch.multinomial(probs, 1)
