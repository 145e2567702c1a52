"""How well clusters match classes: normalised mutual information, and accuracy under the best assignment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Table = npt.NDArray[np.float64]


def contingency(clusters: Tensor, labels: Tensor) -> Table:
    """How many samples of each class (column) went into each cluster (row)."""
    size = int(max(clusters.max(), labels.max())) + 1
    counts = torch.bincount(clusters * size + labels, minlength=size * size)
    return counts.view(size, size).double().numpy()


def nmi(clusters: Tensor, labels: Tensor) -> float:
    """Mutual information over the arithmetic mean of the two entropies; 0 if all share one cluster."""
    joint = contingency(clusters, labels)
    joint /= joint.sum()
    row, column = joint.sum(axis=1), joint.sum(axis=0)
    inside = joint > 0
    information = (joint[inside] * np.log(joint[inside] / np.outer(row, column)[inside])).sum()
    entropies = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in (row, column)]
    mean_entropy = sum(entropies) / 2
    return float(information / mean_entropy) if mean_entropy > 0 else 0.0


def accuracy(clusters: Tensor, labels: Tensor) -> float:
    """Share of samples that are right when clusters are given to classes in the best way."""
    table = contingency(clusters, labels)
    return float(table[np.arange(len(table)), best_assignment(table)].sum() / table.sum())


def best_assignment(benefit: Table) -> npt.NDArray[np.intp]:
    """The column of each row, one to one, with the largest total benefit (Hungarian method, O(n^3))."""
    size = len(benefit)
    cost = benefit.max() - benefit
    row_price, column_price = np.zeros(size), np.zeros(size + 1)
    row_of = np.full(size + 1, -1)  # the last column is a stand-in for "not assigned yet"
    for row in range(size):
        row_of[size] = row
        column = size
        slack, previous = np.full(size, np.inf), np.full(size, size)
        visited = np.zeros(size + 1, dtype=bool)
        while row_of[column] != -1:
            visited[column] = True
            current = row_of[column]
            reduced = cost[current] - row_price[current] - column_price[:size]
            better = ~visited[:size] & (reduced < slack)
            slack[better], previous[better] = reduced[better], column
            following = int(np.where(visited[:size], np.inf, slack).argmin())
            step = slack[following]
            row_price[row_of[visited]] += step
            column_price[visited] -= step
            slack[~visited[:size]] -= step
            column = following
        while column != size:
            row_of[column] = row_of[previous[column]]
            column = int(previous[column])
    assignment = np.empty(size, dtype=np.intp)
    assignment[row_of[:size]] = np.arange(size)
    return assignment
