"""What the rules about non-finite tensors share: the counts, the share, the first index."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor


def describe(tensor: Tensor) -> str:
    """ "3 NaN and 1 Inf of 256 values (1.6 %), first at [0, 17]"."""
    stats = tensor.statistics
    if stats is None:
        return "not read"
    counts = [f"{number} {what}" for number, what in ((stats.nan, "NaN"), (stats.inf, "Inf")) if number]
    share = stats.bad / max(tensor.numel, 1)
    first = list(stats.first_bad) if stats.first_bad is not None else []
    return f"{' and '.join(counts)} of {tensor.numel} values ({percent(share)}), first at {first}"


def percent(share: float) -> str:
    """Never rounds a part up to the whole or down to nothing."""
    if share >= 1:
        return "100 %"
    return f"{min(share * 100, 99.9):.2g} %" if share < 0.1 else f"{min(share * 100, 99.9):.1f} %"


def evidence(tensor: Tensor) -> dict[str, object]:
    """The same as numbers."""
    stats = tensor.statistics
    found: dict[str, object] = {
        "tensor": tensor.name,
        "kind": tensor.kind.value,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "numel": tensor.numel,
    }
    if stats is not None:
        found |= {"nan": stats.nan, "inf": stats.inf, "share": stats.bad / max(tensor.numel, 1)}
        found |= {"first_index": list(stats.first_bad or ()), "min": stats.minimum, "max": stats.maximum}
    if tensor.parameter is not None:
        found["parameter"] = tensor.parameter
    if tensor.aliases:
        found["also"] = [name for name, _ in tensor.aliases]
    return found


def bad_tensors(checkpoint: Checkpoint, *kinds: Kind) -> Iterator[Tensor]:
    """Tensors of these kinds that hold a NaN or an Inf, but not masks that are infinite on purpose."""
    for tensor in checkpoint.of_kind(*kinds):
        if tensor.statistics is not None and tensor.statistics.bad and not tensor.additive_mask:
            yield tensor


def report(
    rule: Rule[Checkpoint], checkpoint: Checkpoint, what: str, fix: str, *kinds: Kind
) -> Iterator[Finding]:
    """One finding for each bad tensor of some kinds."""
    for tensor in bad_tensors(checkpoint, *kinds):
        also = f" (also saved as {tensor.aliases[0][0]})" if tensor.aliases else ""
        yield rule.finding(
            f"{what} {tensor.name}{also}: {describe(tensor)}",
            fix=fix,
            evidence=evidence(tensor),
            file=tensor.file,
        )
