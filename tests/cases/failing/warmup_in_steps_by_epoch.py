# causes: CONFIG_MISTAKE
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
WARMUP, EPOCHS, STEPS = 500, 8, 50
model = nn.Linear(12, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / WARMUP))  # birth
for _epoch in range(EPOCHS):
    for _ in range(STEPS):
        x = torch.randn(16, 12)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()  # birth
