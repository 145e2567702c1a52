"""Checkpoints of every common format, read as data: no pickle is executed, no tensor is loaded whole."""

from stayfinite.readers.checkpoint.locate import Layout, Location, locate
from stayfinite.readers.checkpoint.read import examine_state, measure_all, read_file, read_structure
from stayfinite.readers.checkpoint.source import Unreadable

__all__ = [
    "Layout",
    "Location",
    "Unreadable",
    "examine_state",
    "locate",
    "measure_all",
    "read_file",
    "read_structure",
]
