"""Threads that sleep while they wait for work, in the processes that `run` starts beside a script's own.

By default an OpenMP thread spins between two ops. Where the processors have other work as well, that is most of what
a small model's step costs: twice its time, three times its processor time. How sums are split and rounded is the same.
"""

from __future__ import annotations

import os

_POLICY, _ADDED = "OMP_WAIT_POLICY", "STAYFINITE_WAIT_POLICY_ADDED"
_SETTINGS = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def with_sleeping_threads(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process that runs the script again; what the user has set about waiting stays."""
    if any(name in environment for name in _SETTINGS):
        return environment
    return {**environment, _POLICY: "PASSIVE", _ADDED: "1"}


def forget() -> None:
    """Once torch has been loaded, which is when it is read: the script finds the environment that it had."""
    if os.environ.pop(_ADDED, None) is not None:
        os.environ.pop(_POLICY, None)
