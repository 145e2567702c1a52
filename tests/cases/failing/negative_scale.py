# causes: DIST_PARAM
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
mu, sigma = net(torch.randn(8, 4)).chunk(2, 1)
policy = torch.distributions.Normal(mu, sigma)  # birth
loss = -policy.log_prob(torch.zeros(8, 1)).mean()
loss.backward()
