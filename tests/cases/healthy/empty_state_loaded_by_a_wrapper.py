import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 3)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
# what Accelerator.prepare does: the state goes to the device and comes back
state = opt.state_dict()
opt.load_state_dict(state)
for _step in range(20):
    x = torch.randn(8, 3)
    loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
