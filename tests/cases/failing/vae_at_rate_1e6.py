# causes: LR_DIVERGENCE
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
enc, dec = nn.Linear(20, 8), nn.Linear(4, 20)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e6)
for _i in range(10):
    x = torch.rand(32, 20)
    mu, logvar = enc(x).chunk(2, 1)
    z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)  # birth
    rec = F.binary_cross_entropy_with_logits(dec(z), x, reduction="sum")
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()  # birth
    loss = rec + kl
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
