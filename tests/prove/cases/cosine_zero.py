# accepts: normalize-eps norm eps guarded-division
import torch
import torch.nn as nn

torch.manual_seed(0)


def cosine(a, b):
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


embed = nn.EmbeddingBag(100, 32, mode="sum", padding_idx=0)
proj = nn.Linear(32, 32, bias=False)
optimizer = torch.optim.Adam([*embed.parameters(), *proj.parameters()], lr=1e-3)
bad = False
for step in range(20):
    left = torch.randint(1, 100, (16, 6))
    right = torch.randint(1, 100, (16, 6))
    if step == 7:
        left[3] = 0  # an empty document: nothing but padding
    a, b = proj(embed(left)), proj(embed(right))
    target = torch.ones(16)
    loss = (target - cosine(a, b)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(proj.parameters(), 1.0)
    optimizer.step()
    bad = bad or not torch.isfinite(loss).item()
