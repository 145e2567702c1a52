# accepts: bounded max-subtracted log-space
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(24, 16)
        self.text = nn.Linear(12, 16)
        self.logit_scale = nn.Parameter(torch.tensor(4.6))

    def forward(self, image, text):
        i = F.normalize(self.image(image), dim=-1)
        t = F.normalize(self.text(text), dim=-1)
        return self.logit_scale.exp() * i @ t.T


def info_nce(logits):
    exp = torch.exp(logits)
    positive = exp.diagonal()
    return -torch.log(positive / exp.sum(dim=1)).mean()


model = Contrastive()
opt = torch.optim.AdamW(model.parameters(), lr=5e-2)
shared = torch.randn(128, 8)
to_image, to_text = torch.randn(8, 24), torch.randn(8, 12)
bad = False
for step in range(60):
    pick = torch.randperm(128)[:32]
    logits = model(shared[pick] @ to_image, shared[pick] @ to_text)
    loss = info_nce(logits)
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
