# causes: WHERE_UNSAFE_BRANCH LOG_DOMAIN
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    p = torch.softmax(net(torch.randn(8, 4) * 400), -1)
    entropy = torch.nan_to_num(p * torch.log(p))  # birth
    loss = entropy.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
