# causes: RESUME_LR
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)


def inverse_root(step):
    return (4 / max(4, step + 1)) ** 0.5


def steps(net, opt, schedule, count):
    for _ in range(count):
        tokens = torch.randint(0, 20, (8, 5))
        loss = nn.functional.cross_entropy(net(tokens).transpose(1, 2), tokens.flip(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()


net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
opt = torch.optim.AdamW(net.parameters(), 1e-2)
steps(net, opt, LambdaLR(opt, inverse_root), 60)
saved = {"net": net.state_dict(), "opt": opt.state_dict()}

net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
opt = torch.optim.AdamW(net.parameters(), 1e-2)
net.load_state_dict(saved["net"])
opt.load_state_dict(saved["opt"])
schedule = LambdaLR(opt, inverse_root, -1)  # birth
schedule.last_epoch = 60
steps(net, opt, schedule, 12)
