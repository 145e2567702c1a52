# causes: LABEL_INVALID
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(50, 4)
opt = torch.optim.SGD(table.parameters(), 0.1)
for step in range(3):
    ids = torch.randint(0, 50, (8,))
    if step == 2:
        ids[3] = 50
    loss = table(ids).pow(2).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
