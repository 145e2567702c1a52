# accepts: log-space floor
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.25):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, target):
        probs = F.softmax(logits, dim=-1)
        p_t = probs.gather(1, target.unsqueeze(1)).squeeze(1)
        loss = -self.alpha * (1 - p_t) ** self.gamma * torch.log(p_t)
        return loss.mean()


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
criterion = FocalLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
bad = False
for step in range(30):
    x = torch.randn(32, 16)
    if step >= 12:
        x[:2] *= 3000  # outliers arrive
    y = torch.randint(0, 5, (32,))
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not torch.isfinite(loss).item()
