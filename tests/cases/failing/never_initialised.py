# causes: UNINITIALIZED_MEMORY
import torch
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(4))  # birth

    def forward(self, x):
        return x * self.gain


net = nn.Sequential(nn.Linear(4, 4), Scale())
loss = net(torch.randn(2, 4)).mean()
loss.backward()
