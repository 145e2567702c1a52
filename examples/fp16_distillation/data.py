"""Text, read by two tokenizers at once, and the places where both have read the same characters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizer import START, BytePairTokenizer, FileTokenizer, Tokenizer
from torch import Tensor

Batch = dict[str, Tensor]
IGNORED = -100

PEOPLE = ["baker", "farmer", "painter", "sailor", "teacher", "doctor", "miller", "singer", "hunter", "writer"]
THINGS = ["bread", "apples", "letters", "candles", "maps", "ropes", "songs", "boats", "stones", "lamps"]
QUALITIES = ["old", "quiet", "brave", "tired", "young", "clever", "patient", "merry"]
DEEDS = {"sells": "shop", "carries": "road", "keeps": "cellar", "finds": "river", "brings": "market"}
REASONS = ["because the winter is long", "before the bells ring", "when the rain stops", "after the harvest"]


def make_sentence(rng: random.Random) -> str:
    """One sentence of a small grammar. The deed decides the place, so there is something to learn."""
    deed, place = rng.choice(sorted(DEEDS.items()))
    person, other = rng.sample(PEOPLE, 2)
    words = f"the {rng.choice(QUALITIES)} {person} {deed} {rng.choice(THINGS)}"
    if rng.random() < 0.5:
        words += f" for the {other}"
    words += f" near the {place}"
    if rng.random() < 0.4:
        words += f" {rng.choice(REASONS)}"
    return words + "."


def load_texts(settings: dict[str, Any]) -> list[str]:
    """The lines of `settings['text']`, or generated ones when no file is given."""
    if settings.get("text"):
        return [line for line in Path(settings["text"]).read_text().splitlines() if line.strip()]
    rng = random.Random(0)
    return [make_sentence(rng) for _ in range(settings["documents"])]


def load_tokenizer(file: str | None, texts: list[str], vocab_size: int) -> Tokenizer:
    return FileTokenizer(Path(file)) if file else BytePairTokenizer("\n".join(texts), vocab_size)


def align_equal_ends(student: list[int], teacher: list[int]) -> list[int]:
    """For each student token the teacher token that ends at the same character, or -1."""
    place = {end: index for index, end in enumerate(teacher)}
    return [place.get(end, -1) for end in student]


def align_last_read(student: list[int], teacher: list[int]) -> list[int]:
    """For each student token the last teacher token that has read no character beyond it; there always is one."""
    aligned, index = [], 0
    for end in student:
        while index + 1 < len(teacher) and teacher[index + 1] <= end:
            index += 1
        aligned.append(index)
    return aligned


def pad(rows: list[list[int]], value: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def encode_texts(
    texts: list[str],
    student: Tokenizer,
    teacher: Tokenizer,
    align: Callable[[list[int], list[int]], list[int]],
) -> Batch:
    """All texts as padded tensors; `aligned` holds the teacher's place for each student place, or -1."""
    columns: dict[str, list[list[int]]] = {"student_ids": [], "labels": [], "teacher_ids": [], "aligned": []}
    for text in texts:
        mine, theirs = student.encode(text), teacher.encode(text)
        columns["student_ids"].append(mine.ids[:-1])
        columns["labels"].append(mine.ids[1:])
        columns["teacher_ids"].append(theirs.ids[:-1])
        columns["aligned"].append(align(mine.ends[:-1], theirs.ends[:-1]))
    fill = {"student_ids": START, "labels": IGNORED, "teacher_ids": START, "aligned": -1}
    return {name: pad(rows, fill[name]) for name, rows in columns.items()}


class BatchLoader:
    """Endless random batches; the same step always gives the same batch."""

    def __init__(self, rows: Batch, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.step = 0

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        index = torch.randint(len(self.rows["student_ids"]), (self.batch_size,), generator=generator)
        return {**{name: rows[index] for name, rows in self.rows.items()}, "index": index}

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.batch(self.step)
            self.step += 1
            yield batch
