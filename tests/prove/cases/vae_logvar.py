# accepts: bounded lower-rate clip
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
data = torch.rand(512, 20)
data[::37] *= 400.0  # a few sensors report in other units


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.mu = nn.Linear(64, 4)
        self.logvar = nn.Linear(64, 4)
        self.dec = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 20))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return self.dec(z), mu, logvar


def elbo(recon, x, mu, logvar):
    rec = ((recon - x) ** 2).sum(1).mean()
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return rec + kld


vae = VAE()
opt = optim.Adam(vae.parameters(), lr=3e-2)
loader = DataLoader(TensorDataset(data), batch_size=32, shuffle=True)
bad = False
for epoch in range(3):
    for (x,) in loader:
        recon, mu, logvar = vae(x)
        loss = elbo(recon, x, mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bad = bad or not torch.isfinite(loss).item()
