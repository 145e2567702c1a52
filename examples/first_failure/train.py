"""A first failure: a small model learns to add, until a batch arrives in which every answer was cut off.

The loss is a mean over the answer's characters. Problems are cut to 14 characters and batched by length, as bucketed
loaders do; in a batch of the longest problems nothing is left of the answers, and the mean is 0/0.

    python train.py            the plain loop: NaN from that batch on
    python train.py --guard    the same with stayfinite: that batch is refused, the run goes on
"""

from __future__ import annotations

import argparse
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHARACTERS = "0123456789+= "
LENGTH = 14


def problem(digits: int) -> tuple[str, int]:
    """ "12+7=19" and where its answer begins."""
    a, b = random.randrange(10 ** (digits - 1), 10**digits), random.randrange(10 ** (digits - 1), 10**digits)
    question = f"{a}+{b}="
    return question + str(a + b), len(question)


def batch(digits: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Token ids, and a mask of the characters that belong to an answer."""
    ids = torch.full((size, LENGTH), CHARACTERS.index(" "))
    mask = torch.zeros(size, LENGTH)
    for row in range(size):
        text, answer = problem(digits)
        text = text[:LENGTH]
        ids[row, : len(text)] = torch.tensor([CHARACTERS.index(c) for c in text])
        mask[row, answer : len(text)] = 1
    return ids, mask


def batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Mostly short problems; now and then a bucket of long ones."""
    random.seed(seed)
    return [batch(digits=7 if step % 80 == 60 else random.choice([1, 1, 2])) for step in range(count)]


class Adder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARACTERS), width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.gru(self.embed(ids))[0]))


def masked_loss(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    ce = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    return (ce * mask[:, 1:]).sum() / mask[:, 1:].sum()


def accuracy(model: nn.Module) -> float:
    """Share of answer characters that are right, on fresh short problems."""
    hits = total = 0.0
    for ids, mask in (pair for pair in batches(20, seed=1) if pair[1].any()):
        right = (model(ids[:, :-1]).argmax(-1) == ids[:, 1:]) * mask[:, 1:]
        hits, total = hits + float(right.sum()), total + float(mask[:, 1:].sum())
    return hits / total


def train(steps: int, guarded: bool) -> float:
    torch.manual_seed(0)
    model = Adder()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    data = batches(steps, seed=0)
    if guarded:
        from stayfinite import Guard

        guard = Guard(model, optimizer, clip_norm=1.0)
        for ids, mask in data:
            guard.step(lambda ids=ids, mask=mask: masked_loss(model, ids, mask), batch=(ids, mask))
        print(
            f"applied {guard.counters.applied}, skipped {guard.counters.skipped}; record: {guard.run_dir}/run.jsonl"
        )
    else:
        for step, (ids, mask) in enumerate(data):
            optimizer.zero_grad()
            loss = masked_loss(model, ids, mask)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 40 == 0 or step == 60:
                print(f"step {step}: loss {loss.item():.3f}")
    result = accuracy(model)
    bad = sum(not torch.isfinite(p).all() for p in model.parameters())
    print(
        f"parameters that hold NaN: {bad} of {len(list(model.parameters()))}; accuracy of the answers {result:.2f}"
    )
    return math.nan if bad else result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--guard", action="store_true", help="the same training under guard")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so small a model gains nothing from more
    train(arguments.steps, arguments.guard)


if __name__ == "__main__":
    main()
