# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Conv2d(1, 1, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    image = torch.rand(2, 1, 8, 8)
    truth = (image > (0.5 if step < 3 else 2.0)).float()
    guess = torch.relu(net(image)) * (0.0 if step == 3 else 1.0)
    dice = 2 * (guess * truth).sum() / (guess.sum() + truth.sum())  # birth
    loss = 1 - dice
    opt.zero_grad()
    loss.backward()
    opt.step()
