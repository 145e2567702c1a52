"""The fire drill, `stayfinite run --drill`: real faults in the real script, in the sandbox, and what became of them."""

from __future__ import annotations

from stayfinite.launch.drill.command import DrillRefused, drill

__all__ = ["DrillRefused", "drill"]
