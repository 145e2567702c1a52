"""Data files as text: what each one holds, its findings, and whether a cache has to be computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings import Finding
from stayfinite.findings.subjects.data_set import DataArray, DataSet
from stayfinite.report.checkpoints import size
from stayfinite.report.text import lines, tally

_MOST_ARRAYS = 6
_RECOMPUTE = {
    "nothing": "the cache is usable: nothing has to be computed again",
    "rows": "the cache is usable once the rows named above are computed again",
    "all": "compute the whole cache again",
}


def heading(data: DataSet) -> Text:
    parts = [data.format] if data.format != "unknown" else ["not readable"]
    if data.nbytes:
        parts.append(size(data.nbytes))
    line = Text(data.path, style="bold")
    line.append(f"  ({', '.join(parts)})", style="not bold dim")
    return line


def _array(array: DataArray, images: bool) -> Text:
    shape = " x ".join(str(number) for number in array.shape) or "one value"
    if images:  # an image is known by its lowest and its highest pixel
        shape = f"{array.rows} of any size"
    spread = ""
    if math.isfinite(array.minimum):
        spread = f", {array.minimum:.4g} to {array.maximum:.4g}"
    middle = (
        f", mean {array.mean:.3g}, std {array.deviation:.3g}"
        if array.mean is not None and array.floating
        else ""
    )
    note = f" ({array.note})" if array.note else ""
    return Text(f"  {array.name}: {array.use.value}, {shape}, {array.dtype}{spread}{middle}{note}")


def data_lines(
    results: Sequence[tuple[DataSet, Sequence[Finding]]], *, everything: bool = False
) -> list[RenderableType]:
    """Each file in the order given; files without findings in one line where there are many."""
    made: list[RenderableType] = []
    many = len(results) > 8 and not everything
    quiet = 0
    for data, findings in results:
        if many and not findings:
            quiet += 1
            continue
        made.append(heading(data))
        shown = data.arrays if everything else data.arrays[:_MOST_ARRAYS]
        made += [_array(array, data.format.endswith("images")) for array in shown]
        if len(shown) < len(data.arrays):
            made.append(Text(f"  and {len(data.arrays) - len(shown)} more arrays (--all)", style="dim"))
        made += lines(findings, everything=everything)
        if not findings:
            made.append(Text("  nothing found", style="green"))
        recompute = data.recompute()
        if recompute is not None:
            made.append(
                Text(f"  {_RECOMPUTE[recompute]}", style="green" if recompute == "nothing" else "bold red")
            )
    if quiet:
        made.append(Text(f"{quiet} more files: nothing found", style="green"))
    if len(results) > 1:
        made.append(
            Text(f"{len(results)} files: {tally([f for _, found in results for f in found])}", style="bold")
        )
    return made
