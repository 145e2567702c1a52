# accepts: empty-rows finite-mask
import math

import torch
from torch import nn

torch.manual_seed(1)


class SelfAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 32)
        self.attn = SelfAttention()
        self.head = nn.Linear(32, 7)

    def forward(self, ids, mask):
        return self.head(self.attn(self.emb(ids), mask))


model = Tagger()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
bad = False
for it in range(12):
    ids = torch.randint(0, 50, (8, 10))
    lengths = torch.randint(1, 11, (8,))
    if it == 5:
        lengths[2] = 0
    mask = torch.arange(10)[None] < lengths[:, None]
    tags = torch.randint(0, 7, (8, 10))
    logits = model(ids, mask)
    loss = (
        nn.functional.cross_entropy(logits.transpose(1, 2), tags, reduction="none") * mask
    ).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
