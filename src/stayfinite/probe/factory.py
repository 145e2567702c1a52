"""Finds `module:factory` from the current folder and calls it; whatever is wrong becomes one clear sentence."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from stayfinite.probe.target import Probe, as_probe


class WrongFactory(Exception):
    """The factory cannot be found, called or used. The text says what, where and what to do."""


def load(spec: str) -> Probe:
    """Import the module (a dotted name or a .py file), call the function, and read what it returns."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise WrongFactory(
            f"{spec!r} is not of the form module:function, such as train:make or src/train.py:make"
        )
    module = _module(place)
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            offered = sorted(key for key, value in vars(module).items()
                             if callable(value) and not key.startswith("_")
                             and getattr(value, "__module__", "") == module.__name__)  # fmt: skip
            more = f"; it has {', '.join(offered[:8])}" if offered else ""
            raise WrongFactory(f"{place} has no function {name!r}{more}")
        function = getattr(function, part)
    if not callable(function):
        raise WrongFactory(f"{spec} is a {type(function).__name__}, not a function")
    try:
        made = function()
    except Exception as error:
        raise WrongFactory(f"{spec} raised {_said(error, module)}") from error
    except SystemExit as error:
        raise WrongFactory(
            f"{spec} ended the program (exit {error.code}); a factory returns what is to be probed"
        ) from error
    try:
        return as_probe(made)
    except (TypeError, ValueError) as error:
        raise WrongFactory(f"{spec}: {error}") from error


def _module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # it stays: modules may import their neighbours when they are used
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise WrongFactory(f"there is no file {place}")
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        place = path.stem
        if not place.isidentifier() or place in sys.modules:
            return _from_file(path)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        top = place.partition(".")[0]
        if error.name in (place, top) or (error.name and place.startswith(error.name + ".")):
            raise WrongFactory(f"there is no module {place!r} in {here} or on the Python path") from error
        raise WrongFactory(f"importing {place} raised {_said(error)}") from error
    except Exception as error:
        raise WrongFactory(f"importing {place} raised {_said(error)}") from error
    except SystemExit as error:
        raise WrongFactory(
            f"importing {place} ended the program (exit {error.code}); put the script's work under "
            'if __name__ == "__main__"'
        ) from error


def _from_file(path: Path) -> ModuleType:
    name = "stayfinite_probed_" + "".join(c if c.isalnum() else "_" for c in path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WrongFactory(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise WrongFactory(f"importing {path} raised {_said(error)}") from error
    return module


def _said(error: Exception, module: ModuleType | None = None) -> str:
    """The exception in a line, with the place inside the user's file where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    wanted = getattr(module, "__file__", None)
    mine = [frame for frame in frames if frame.filename == wanted] or [
        frame for frame in frames if "stayfinite" not in frame.filename and "<frozen" not in frame.filename
    ]
    at = f" ({mine[-1].filename}:{mine[-1].lineno})" if mine else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{at}"
