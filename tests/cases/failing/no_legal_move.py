# causes: EMPTY_REDUCTION SECONDARY_ERROR DIST_PARAM NORMALIZE_ZERO_VECTOR
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 3)
opt = torch.optim.SGD(policy.parameters(), 0.1)
for step in range(4):
    legal = torch.ones(8, 3)
    legal[2] = 0.0 if step == 2 else 1.0
    moves = policy(torch.randn(8, 4)).softmax(-1) * legal
    moves = moves / moves.sum(-1, keepdim=True)  # birth
    try:
        chosen = torch.distributions.Categorical(probs=moves).sample()
    except ValueError:
        break
    loss = -moves.gather(1, chosen[:, None]).log().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
