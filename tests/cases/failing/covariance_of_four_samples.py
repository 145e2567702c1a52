# causes: LINALG_DEGENERATE
import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(10, 6)
opt = torch.optim.Adam(encoder.parameters(), 1e-2)
for n in (32, 32, 4):
    z = encoder(torch.randn(n, 10))
    z = z - z.mean(0)
    try:
        factor = torch.linalg.cholesky(z.T @ z / (n - 1))  # birth
    except torch.linalg.LinAlgError as error:
        print("gave up:", error)
        break
    loss = -factor.diagonal().log().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
