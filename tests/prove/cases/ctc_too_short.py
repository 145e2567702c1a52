# accepts: zero-infinity
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

rnn = nn.Linear(5, 6)
opt = torch.optim.SGD(rnn.parameters(), lr=0.1)
frames = torch.randn(4, 2, 5)
log_probs = rnn(frames).log_softmax(2)
targets = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 0, 0, 0]])
loss = F.ctc_loss(log_probs, targets, torch.tensor([4, 4]), torch.tensor([5, 2]))
opt.zero_grad()
loss.backward()
opt.step()
bad = not torch.isfinite(loss)
