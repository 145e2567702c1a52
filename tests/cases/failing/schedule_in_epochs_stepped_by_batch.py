# causes: CONFIG_MISTAKE
import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 12)
        self.read = nn.LSTM(12, 12, batch_first=True)
        self.tag = nn.Linear(12, 4)

    def forward(self, sentence):
        return self.tag(self.read(self.words(sentence))[0])


tagger = Tagger()
optimizer = torch.optim.Adam(
    [{"params": tagger.words.parameters(), "lr": 1e-3}, {"params": tagger.tag.parameters()}], lr=5e-3
)
by_epoch = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6, 9, 12, 15, 18], gamma=0.1)


def batches():
    for _ in range(12):
        sentence = torch.randint(0, 50, (8, 6))
        yield sentence, sentence % 4


for _ in range(5):
    for sentence, tags in batches():
        loss = nn.functional.cross_entropy(tagger(sentence).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_epoch.step()  # birth
