# accepts: guarded-division
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def dice(pred, target):
    inter = (pred * target).sum()
    return 1 - 2 * inter / (pred.sum() + target.sum())


net = nn.Conv2d(1, 1, 3, padding=1)
img = torch.zeros(2, 1, 8, 8)
pred = F.relu(net(img) - 5.0)
loss = dice(pred, torch.zeros(2, 1, 8, 8))
loss.backward()
bad = torch.isnan(loss).item()
