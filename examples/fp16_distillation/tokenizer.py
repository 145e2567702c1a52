"""A byte-pair tokenizer that also says where in the text each token ends; or one read from a tokenizer.json."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

START = 0  # the id that opens every text; it stands for no character
WORD = re.compile(r" ?\w+|[^\w ]| ")


class Encoding(NamedTuple):
    ids: list[int]
    ends: list[int]  # characters read once this token has been read


class Tokenizer(Protocol):
    vocab_size: int

    def encode(self, text: str) -> Encoding: ...


class BytePairTokenizer:
    """Merges learned from a text: the most frequent pair first, until the vocabulary is full."""

    def __init__(self, text: str, vocab_size: int) -> None:
        words = {tuple(word): count for word, count in Counter(WORD.findall(text)).items()}
        symbols = sorted({symbol for word in words for symbol in word})
        self.ranks: dict[tuple[str, str], int] = {}
        while len(symbols) + 1 < vocab_size:
            pairs: Counter[tuple[str, str]] = Counter()
            for word, count in words.items():
                for pair in pairwise(word):
                    pairs[pair] += count
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = len(self.ranks)
            symbols.append("".join(best))
            words = {merge(word, best): count for word, count in words.items()}
        self.ids = {symbol: number for number, symbol in enumerate(symbols, start=START + 1)}
        self.vocab_size = len(symbols) + 1
        self.split = cache(self._split)

    def _split(self, word: str) -> tuple[str, ...]:
        parts = tuple(word)
        while len(parts) > 1:
            known = [pair for pair in pairwise(parts) if pair in self.ranks]
            if not known:
                break
            parts = merge(parts, min(known, key=self.ranks.__getitem__))
        return parts

    def encode(self, text: str) -> Encoding:
        ids, ends = [START], [0]
        for word in WORD.findall(text):
            for part in self.split(word):
                ids.append(self.ids[part])
                ends.append(ends[-1] + len(part))
        return Encoding(ids, ends)


def merge(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)


class FileTokenizer:
    """A tokenizer.json, read with the `tokenizers` package."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Reader  # type: ignore[import-not-found]

        self.reader = Reader.from_file(str(path))
        self.vocab_size = self.reader.get_vocab_size() + 1

    def encode(self, text: str) -> Encoding:
        encoded = self.reader.encode(text, add_special_tokens=False)
        ids = [START, *(number + 1 for number in encoded.ids)]
        return Encoding(ids, [0, *(end for _, end in encoded.offsets)])
