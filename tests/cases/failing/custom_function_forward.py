# causes: DOMAIN_VIOLATION
import torch
from torch import nn


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()  # birth
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad / (2 * y)


torch.manual_seed(0)
net = nn.Linear(4, 4)
loss = Root.apply(net(torch.randn(8, 4))).mean()
loss.backward()
