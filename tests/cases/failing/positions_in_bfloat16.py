# causes: BF16_PRECISION
import torch

rates = 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32)
positions = torch.arange(1500, dtype=torch.bfloat16)  # birth
table = torch.cos(torch.outer(positions, rates.bfloat16()))
print(table.shape)
