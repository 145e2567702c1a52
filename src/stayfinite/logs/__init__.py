"""Logs of past and running trainings: one pass over a stream, then findings.

from stayfinite.logs import examine_log
verdict = examine_log("runs/a/run.jsonl")
"""

from stayfinite.logs.examine import LogVerdict, examine_log, read_log
from stayfinite.readers.log import UnreadableLog

__all__ = ["LogVerdict", "UnreadableLog", "examine_log", "read_log"]
