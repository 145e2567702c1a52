"""A step function's call with some of the samples of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from stayfinite.watch.watcher import Call


def spread(call: Call) -> Call:
    """partial(fn, batch) as a function and its arguments."""
    fn: Any = call.fn
    arguments = call.args
    while isinstance(fn, partial) and not fn.keywords:
        fn, arguments = fn.func, (*fn.args, *arguments)
    return Call(fn, arguments, call.names)


def batch_size(call: Call) -> int | None:
    """The common first dimension of the tensors among the arguments; None if there is none."""
    sizes = {
        leaf.shape[0]
        for argument in call.args
        if not isinstance(argument, torch.nn.Module)
        for leaf in tree_leaves(argument)
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0
    }
    return sizes.pop() if len(sizes) == 1 else None


def with_samples(call: Call, chosen: Sequence[int], count: int) -> Call:
    """The same call with some of the samples."""
    index = torch.tensor(list(chosen), dtype=torch.long)

    def some(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == count:
            return leaf.index_select(0, index.to(leaf.device))
        return leaf

    arguments = []
    for argument in call.args:
        if isinstance(argument, torch.nn.Module):
            arguments.append(argument)
            continue
        leaves, shape = tree_flatten(argument)
        arguments.append(tree_unflatten([some(leaf) for leaf in leaves], shape))
    return Call(call.fn, tuple(arguments), call.names)
