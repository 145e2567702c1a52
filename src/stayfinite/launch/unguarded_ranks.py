"""Ranks that the script starts itself (Lightning's own launcher, a Popen): `run` is not in them.

Whoever decides without them leaves replicas that differ, and whoever waits for them waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from stayfinite.recover.ranks import world_size
from stayfinite.recover.roll_call import RollCall, trained_by_all

_SECONDS = 30.0
"""Ranks that train one model have just met to make it: nobody is far behind."""


def obstacle_of_ranks(launched: int, models: Iterable[nn.Module]) -> str | None:
    """Why nothing can be refused in a training of several ranks; None where all of them are guarded, or each is alone.

    `launched`: how many ranks whoever started this process told it of. Where that are all, all are started alike.
    """
    ranks = world_size()
    if ranks in (1, launched) or not trained_by_all(models) or RollCall("run").all_came(_SECONDS):
        return None
    return (
        f"not all {ranks} ranks of this training run under `stayfinite run`, and what one refuses alone sets the "
        f"replicas apart. Where the script starts them itself, start it with `stayfinite run --nproc-per-node {ranks}`."
    )
