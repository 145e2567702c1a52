# causes: DIST_DESYNC
import copy

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(48, 3))
replicas = [encoder, copy.deepcopy(encoder), copy.deepcopy(encoder)]
optimizers = [torch.optim.SGD(replica.parameters(), 0.05, momentum=0.9) for replica in replicas]


def shard(rank, step):
    signal = torch.randn(6, 2, 8)
    return signal * (20 if rank == 2 and step in (5, 11) else 1), torch.randint(0, 3, (6,))


for step in range(18):
    norms = []
    for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
        signal, label = shard(rank, step)
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(replica(signal), label).backward()
        norms.append(sum(float(p.grad.norm()) for p in replica.parameters()))
    with torch.no_grad():
        for copies in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = torch.stack([p.grad for p in copies]).mean(0)
            for p in copies:
                p.grad.copy_(mean)
    for norm, optimizer in zip(norms, optimizers, strict=True):
        if norm < 30:
            optimizer.step()  # birth
