# accepts: guarded-mean
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

head = nn.Linear(8, 10)
opt = torch.optim.SGD(head.parameters(), lr=0.1)
history = []
for step in range(4):
    labels = torch.randint(0, 10, (6,))
    if step == 2:
        labels.fill_(-100)
    loss = F.cross_entropy(head(torch.randn(6, 8)), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
bad = any(value != value for value in history)
