# causes: LOG_DOMAIN
import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Linear(2, 4)
critic = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
opt_g = torch.optim.SGD(gen.parameters(), 0.01)
opt_c = torch.optim.SGD(critic.parameters(), 0.01)
for step in range(5):
    fake = gen(torch.randn(8, 2))
    loss_g = fake.pow(2).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    score = critic(fake.detach() * (1.0 if step < 3 else 1e4))
    loss_c = -torch.log(1 - score).mean()  # birth
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
