# causes: SQRT_POW_GRAD_AT_ZERO LOG_DOMAIN
import torch
from torch.func import grad, vmap

torch.manual_seed(0)
w = torch.randn(3)
x = torch.randn(5, 3)
x[2] = 0.0


def energy(weights, sample):
    return (weights * sample).pow(2).sum().sqrt()  # birth


per_sample = vmap(grad(energy), in_dims=(None, 0))(w, x)  # birth
