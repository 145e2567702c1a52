# causes: CTC_INFEASIBLE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 7)
opt = torch.optim.SGD(net.parameters(), 0.01)
criterion = nn.CTCLoss()
for step in range(3):
    lp = net(torch.randn(12, 2, 5)).log_softmax(-1)
    labels = torch.randint(1, 7, (2, 9))
    frames = torch.tensor([12, 12 if step < 2 else 4])
    loss = criterion(lp, labels, frames, torch.tensor([3, 9 if step == 2 else 2]))  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
