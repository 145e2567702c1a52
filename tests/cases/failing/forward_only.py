# causes: EMPTY_REDUCTION
import torch

torch.manual_seed(0)
hits = torch.tensor([3, 0, 5])
seen = torch.tensor([4, 0, 9])
recall = hits / seen  # birth
print(recall)
