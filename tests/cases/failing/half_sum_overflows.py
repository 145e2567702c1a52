# causes: FP16_OVERFLOW
import torch

torch.manual_seed(0)
weights = torch.rand(4096).half() * 40
total = weights.pow(2).sum()  # birth
scaled = weights / total.sqrt() + torch.log(total)
