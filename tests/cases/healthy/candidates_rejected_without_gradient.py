import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.05)
for _step in range(15):
    x = torch.randn(32, 3)
    with torch.no_grad():
        proposals = torch.randn(6, 3) * 5
        scores = torch.log(proposals.sum(1))  # NaN for the negative ones
        keep = torch.isfinite(scores)
        best = proposals[keep][scores[keep].argmax()]
    loss = (net(x) - x @ best[:, None]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
