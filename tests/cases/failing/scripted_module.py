# causes: LOG_DOMAIN
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)


class Entropy(nn.Module):
    def forward(self, p):
        return -(p * torch.log(p)).sum(-1)


net = nn.Linear(4, 4)
entropy = torch.jit.script(Entropy())
p = torch.relu(net(torch.randn(8, 4)))
loss = entropy(p).mean()  # birth
loss.backward()
