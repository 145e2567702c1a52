# causes: LR_DIVERGENCE
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Gpt(nn.Module):
    def __init__(self, v=40, d=32, t=16):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Parameter(torch.zeros(t, d))
        self.ln, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.head = nn.Linear(d, v)
        self.register_buffer("mask", torch.tril(torch.ones(t, t)).bool())

    def forward(self, i):
        x = self.emb(i) + self.pos
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        att = (q @ k.transpose(-1, -2) / 32**0.5).masked_fill(~self.mask, float("-inf"))  # birth
        x = x + self.o(torch.softmax(att, -1) @ v)  # birth
        return self.head(x)  # birth


m = Gpt()
o = torch.optim.AdamW(m.parameters(), lr=1e18)
for _s in range(6):
    i = torch.randint(0, 40, (8, 16))
    loss = F.cross_entropy(m(i).flatten(0, 1), i.flatten())  # birth
    o.zero_grad()
    loss.backward()
    o.step()  # birth
