# causes: EMPTY_REDUCTION SQRT_POW_GRAD_AT_ZERO WHERE_UNSAFE_BRANCH NORMALIZE_ZERO_VECTOR
import torch
from torch import nn


class Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1)
        ctx.save_for_backward(x, length)
        return length

    @staticmethod
    def backward(ctx, grad):
        x, length = ctx.saved_tensors
        return grad[:, None] * x / length[:, None]  # birth


torch.manual_seed(0)
net = nn.Linear(3, 3, bias=False)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    x = torch.randn(4, 3)
    if step == 2:
        x[0] = 0.0
    loss = Length.apply(net(x)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
