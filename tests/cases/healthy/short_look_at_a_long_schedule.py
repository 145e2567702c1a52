import torch

torch.manual_seed(0)
net = torch.nn.Linear(8, 2)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=2000)
for _step in range(40):  # --max-steps 40, to see that it runs
    x = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
