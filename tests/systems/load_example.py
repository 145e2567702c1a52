"""Loads the modules of one example in isolation: each has its own model.py, loss.py, data.py, train.py."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OWN_MODULES = ("model", "loss", "data", "train", "train_guarded")


@cache
def load_example(name: str) -> SimpleNamespace:
    """Import examples/<name>: .model .loss .data .train .train_guarded, any other module they import, and .folder.

    The modules leave `sys.modules` again, so that the next example can bring its own `model`.
    An example must therefore import its own modules at the top of a file, not inside a function.
    """
    folder = EXAMPLES / name
    local = {path.stem for path in folder.glob("*.py")}
    missing = [module for module in OWN_MODULES if module not in local]
    if missing:
        raise FileNotFoundError(f"Example '{name}' has no {missing[0]}.py in {folder}.")

    hidden = {module: sys.modules.pop(module) for module in local if module in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        for module in OWN_MODULES:
            importlib.import_module(module)
        own: dict[str, ModuleType] = {
            module: sys.modules[module] for module in local if module in sys.modules
        }
    finally:
        sys.path.remove(str(folder))
        for module in local:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)
    return SimpleNamespace(**own, folder=folder)
