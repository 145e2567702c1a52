# accepts: log-space floor
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

student, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
opt = torch.optim.SGD(student.parameters(), lr=1e-5)
for step in range(3):
    x = torch.randn(5, 6) * (1 if step < 2 else 900)
    p = student(x).softmax(-1)
    with torch.no_grad():
        q = teacher(x / 900).softmax(-1)
    loss = F.kl_div(p.log(), q, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not torch.isfinite(student.weight).all()
