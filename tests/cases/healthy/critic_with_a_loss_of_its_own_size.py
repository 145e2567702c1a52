"""Six updates of a critic whose loss is next to nothing, one of a generator whose loss is thousands: two losses."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
steps = torch.optim.Adam(generator.parameters(), 1e-4), torch.optim.Adam(critic.parameters(), 1e-4)
for turn in range(42):
    noise = torch.randn(16, 4)
    trained = int(turn % 7 != 0)
    judged = critic(generator(noise))
    loss = 1e-6 * judged.pow(2).mean() if trained else 3000.0 + judged.pow(2).mean()
    steps[trained].zero_grad()
    loss.backward()
    steps[trained].step()
