# accepts: float32 autocast-off autocast-bfloat16 bfloat16 float32-operation
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(
    device
)
opt = torch.optim.SGD(model.parameters(), lr=1e-6)
bad = False
for step in range(10):
    x = torch.randn(32, 64, device=device)
    price = torch.rand(32, 1, device=device) * 600  # thousands
    with torch.autocast(device, dtype=torch.float16):
        pred = model(x)
        err = pred - price.half()
        loss = (err * err).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
