"""stayfinite's own run.jsonl: JSON lines that also tell what was done to a step and what happened to the run."""

from __future__ import annotations

from stayfinite.readers.log import json_lines
from stayfinite.readers.log.block import Wanted

NAME = "stayfinite run.jsonl"


def sniff(head: bytes, name: str) -> bool:
    """True where the first line is an event of a guarded run, or a step with an action."""
    first = head.lstrip().partition(b"\n")[0]
    known = b'"event"' in first and b'"start"' in first
    return json_lines.sniff(head, name) and (known or (b'"action"' in first and b'"grad_norm"' in first))


def make_reader(wanted: Wanted) -> json_lines.JsonLinesReader:
    return json_lines.JsonLinesReader(wanted)
