import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), 1e-2)


def trial(scale):
    with torch.no_grad():
        return torch.exp(model(torch.ones(2, 4) * scale) * scale).mean().item()


for _step in range(10):
    best = min((s for s in (1.0, 10.0, 1e4) if trial(s) < float("inf")), default=1.0)
    x = torch.randn(16, 4)
    loss = (model(x * min(best, 1.0)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
