import torch

torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
x = torch.tensor([[2.0, 1.0], [-2.0, -1.0], [3.0, 0.5], [-1.0, -3.0]])
y = torch.tensor([1.0, -1.0, 1.0, -1.0])
for _step in range(60):
    margin = 1 - y * net(x).squeeze(1)
    loss = margin.clamp(min=0).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        ratio = (loss / loss).nan_to_num()  # 0/0 once everything is right
