"""Python processes that need not load torch: forked from one that has loaded it and has run nothing yet.

Loading torch and what its optimizers import costs four seconds of processor time, and the tests start some hundred
processes. How a process starts is the same but for that: see `server.py`. What is asked of the start itself (what is
imported when, options of the interpreter) is tested with `subprocess`.
"""

from preloaded.client import Started, run, start

__all__ = ["Started", "run", "start"]
