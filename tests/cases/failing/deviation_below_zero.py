# causes: DIST_PARAM
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.deviation = nn.Linear(4, 2), nn.Parameter(torch.full((2,), 0.3))

    def forward(self, state):
        return Normal(self.mean(state), self.deviation.expand(len(state), 2), validate_args=False)


policy = Policy()
opt = torch.optim.SGD(policy.parameters(), 0.05)
message = ""
try:
    for _ in range(40):
        state = torch.randn(32, 4)
        action = policy(state).sample()  # birth
        loss = policy(state).rsample().square().mean() + policy.deviation.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
except RuntimeError as error:
    message = str(error)
print(message)
