# causes: EXP_OVERFLOW LR_DIVERGENCE
import torch

stiffness = torch.nn.Parameter(torch.tensor([40.0, 55.0]))
optim = torch.optim.SGD([stiffness], lr=1e-4)
target = torch.zeros(16, 2)


def integrate(state, dt=0.1, steps=80):
    for _ in range(steps):
        state = state + dt * (-stiffness * state)  # birth
    return state


for epoch in range(3):
    state = torch.randn(16, 2, generator=torch.Generator().manual_seed(epoch))
    loss = (integrate(state) - target).pow(2).mean()  # birth
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(epoch, loss.item())
