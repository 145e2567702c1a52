# causes: NORMALIZE_ZERO_VECTOR EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
emb = nn.Embedding(10, 4, padding_idx=0)
a, b = emb(torch.tensor([3, 0, 5])), emb(torch.tensor([1, 2, 3]))
similarity = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))  # birth
loss = (1 - similarity).mean()
loss.backward()
