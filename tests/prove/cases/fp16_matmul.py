# accepts: float32 bfloat16
import torch

torch.manual_seed(0)


def scores(q, k):
    return torch.matmul(q, k.transpose(-1, -2))


q = (torch.randn(2, 4, 32) * 100).half().requires_grad_()
k = (torch.randn(2, 4, 32) * 100).half()
att = torch.softmax(scores(q, k).float(), -1)
att.sum().backward()
bad = torch.isnan(att).any().item()
