import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.zeros(100))
opt = torch.optim.SGD([w], lr=10.0)
goal = torch.randint(-500, 500, (100,)).float()
for _i in range(80):
    loss = (w - goal).abs().mean()
    opt.zero_grad()
    loss.backward()
    w.grad.sign_()
    opt.step()
