# causes: SQRT_POW_GRAD_AT_ZERO
import torch
import torch.nn.functional as F


def focal(logits, target, gamma=0.5):
    p = torch.sigmoid(logits)
    pt = torch.where(target > 0.5, p, 1 - p)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return ((1 - pt) ** gamma * ce).mean()  # birth


torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(3, 1))
opt = torch.optim.SGD([w], lr=0.1)
for _i in range(4):
    x = torch.randn(20, 3)
    x[0] = 200 * w.detach().squeeze(1)
    y = (x @ w.detach() > 0).float()
    loss = focal(x @ w, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
