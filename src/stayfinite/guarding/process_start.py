"""How this process was started, where it runs a script of the user's: what a later run of the same needs to know."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch

from stayfinite.findings import Json
from stayfinite.recover.ranks import world_size
from stayfinite.replay.sites import USER, kind_of_file
from stayfinite.sandbox.hash_seed import seed_of_this_run


def started_script() -> dict[str, Json] | None:
    """The facts of a script's capsule; None for what is no script (a notebook, a test), or one rank of several.

    Random numbers from before the script are gone: one that does not seed its own may go another way.
    """
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None or kind_of_file(file) != USER or not Path(file).is_file() or world_size() > 1:
        return None
    name = spec.name.removesuffix(".__main__") if spec is not None else os.path.realpath(file)
    return {
        "kind": "script",
        "target": name,
        "arguments": list(sys.argv[1:]),
        "module": spec is not None,
        "folder": str(Path.cwd()),
        "threads": torch.get_num_threads(),
        "hash_seed": seed_of_this_run(),
        "python_random": [list(part) if isinstance(part, tuple) else part for part in random.getstate()],
    }
