"""The peers of `stayfinite run`: torch's detect_anomaly and transformers' DebugUnderflowOverflow on one script."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class PeerVerdict:
    """Whether a peer raised its alarm, and the line its message shows."""

    alarm: bool = False
    line: int | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> PeerVerdict:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


def run_peer(name: str, script: str, verdict: Path) -> int:
    """Run a script with one peer switched on and write what it said."""
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = script
    sys.modules["__main__"], sys.argv = main, [script]
    code = compile(Path(script).read_bytes(), script, "exec")
    _RUNNERS[name](code, main.__dict__, script).write(verdict)
    return 0


def _anomaly(code: types.CodeType, names: dict[str, Any], script: str) -> PeerVerdict:
    import torch

    said = io.StringIO()
    with contextlib.redirect_stderr(said), torch.autograd.detect_anomaly():
        try:
            exec(code, names)
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                return PeerVerdict()
            return PeerVerdict(True, _last_line(said.getvalue(), script))
        except BaseException:  # noqa: BLE001 - the script's own end, not the peer's alarm
            return PeerVerdict()
    return PeerVerdict()


def _debug_overflow(code: types.CodeType, names: dict[str, Any], script: str) -> PeerVerdict:
    import torch
    from transformers.debug_utils import DebugUnderflowOverflow

    watched: set[int] = set()
    call = torch.nn.Module.__call__

    def calling(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in watched:
            watched.update(id(inner) for inner in module.modules())
            DebugUnderflowOverflow(module)
        return call(module, *args, **kwargs)

    torch.nn.Module.__call__ = calling  # type: ignore[method-assign]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(code, names)
        except ValueError as error:
            if "DebugUnderflowOverflow" not in str(error):
                return PeerVerdict()
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script]
            return PeerVerdict(True, frames[-1].lineno if frames else None)
        except BaseException:  # noqa: BLE001 - the script's own end, not the peer's alarm
            return PeerVerdict()
    return PeerVerdict()


def _last_line(text: str, script: str) -> int | None:
    """The last line of the script that a printed traceback names."""
    found = re.findall(rf'File "{re.escape(script)}", line (\d+)', text)
    return int(found[-1]) if found else None


_RUNNERS: dict[str, Callable[[types.CodeType, dict[str, Any], str], PeerVerdict]] = {
    "detect_anomaly": _anomaly,
    "DebugUnderflowOverflow": _debug_overflow,
}
PEERS: dict[str, Callable[[], bool]] = {
    "detect_anomaly": lambda: True,
    "DebugUnderflowOverflow": lambda: importlib.util.find_spec("transformers") is not None,
}
