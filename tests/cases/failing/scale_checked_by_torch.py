# causes: DOMAIN_VIOLATION
# exit: 1
import torch
from torch.distributions import Normal

torch.manual_seed(0)
mu = torch.nn.Parameter(torch.zeros(()))
raw = torch.nn.Parameter(torch.tensor(1.0))
opt = torch.optim.SGD([mu, raw], lr=1e-4)
for _i in range(30):
    obs = torch.randn(32)
    sigma = torch.sqrt(raw)  # birth
    loss = -Normal(mu, sigma).log_prob(obs).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    raw.data.sub_(0.15)
