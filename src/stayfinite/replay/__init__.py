"""On failure only: follow a step once more and find the operation and line where the bad value was born."""

from stayfinite.replay.tracer import Tracer

__all__ = ["Tracer"]
