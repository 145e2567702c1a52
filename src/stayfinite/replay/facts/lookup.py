"""Lookups: labels and indices against the size they point into; how many labels count at all."""

from __future__ import annotations

import torch

from stayfinite.findings.subjects.traced_birth import Plain
from stayfinite.replay.facts.call import Call, Measurement, count


def _range(index: torch.Tensor, size: int, ignored: int | None) -> dict[str, Plain]:
    if index.dtype.is_floating_point or index.dtype == torch.bool or index.numel() == 0:
        return {}
    kept = index if ignored is None else index[index != ignored]
    facts: dict[str, Plain] = {"size": size, "valid": kept.numel(), "empty": kept.numel() == 0}
    if kept.numel():
        facts["index_min"], facts["index_max"] = int(kept.min()), int(kept.max())
        facts["invalid"] = count((kept < 0) | (kept >= size))
    return facts


def _class_labels(call: Call) -> dict[str, Plain]:
    scores, target = call.tensors.get("self"), call.tensors.get("target")
    if scores is None or target is None or scores.dim() == 0:
        return {}
    classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
    ignored = call.number("ignore_index")
    facts = _range(target, classes, None if ignored is None else int(ignored))
    weight = call.tensors.get("weight")
    if weight is not None and target.numel() and not facts.get("invalid"):
        inside = target[(target >= 0) & (target < classes)]
        facts["weight_sum"] = float(weight.double()[inside].sum())
    return facts


def _along(call: Call) -> dict[str, Plain]:
    source, index = call.tensors.get("self"), call.tensors.get("index")
    dim = call.number("dim")
    if source is None or index is None or dim is None or source.dim() == 0:
        return {}
    return _range(index, source.shape[int(dim) % source.dim()], None)


def _embedding(call: Call) -> dict[str, Plain]:
    weight, indices = call.tensors.get("weight"), call.tensors.get("indices")
    return {} if weight is None or indices is None else _range(indices, weight.shape[0], None)


def _indexing(call: Call) -> dict[str, Plain]:
    source = call.tensors.get("self")
    if source is None:
        return {}
    for name, index in call.tensors.items():
        if not name.startswith("indices[") or index.dtype == torch.bool:
            continue
        dim = int(name[len("indices[") : -1])
        if dim < source.dim():
            facts = _range(index, source.shape[dim], None)
            # Negative indices are legal here down to -size.
            facts["invalid"] = count((index < -source.shape[dim]) | (index >= source.shape[dim]))
            if facts["invalid"]:
                return facts
    return {}


TABLE: dict[str, Measurement] = {
    "nll_loss": _class_labels,
    "nll_loss2d": _class_labels,
    "nll_loss_nd": _class_labels,
    "cross_entropy_loss": _class_labels,
    "gather": _along,
    "scatter": _along,
    "scatter_add": _along,
    "index_select": _along,
    "index_add": _along,
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "index": _indexing,
    "index_put": _indexing,
}
