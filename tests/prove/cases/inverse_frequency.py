# accepts: guarded-division
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

labels = torch.tensor([0, 0, 1, 3, 3, 3])
counts = torch.bincount(labels, minlength=5)
weights = counts.sum() / counts
weights = weights / weights.sum()
head = nn.Linear(4, 5)
loss = F.cross_entropy(head(torch.randn(6, 4)), labels, weight=weights)
loss.backward()
bad = not torch.isfinite(loss)
