"""A healthy run is bit-identical with and without the guard, nothing is found, and nothing more is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import FRAMEWORKS, guarded, same, unguarded

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{framework: (framework, {}) for framework in FRAMEWORKS},
    "accumulation": ("transformers", {"gradient_accumulation_steps": 3}),
    "bfloat16": ("transformers", {"bf16": True}),
    "lightning accumulation": ("lightning", {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}),
    "lightning manual": ("lightning", {"manual": True}),
    "lightning bfloat16": ("lightning", {"precision": "bf16-mixed"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_bit_identical(variant: str, tmp_path: Path) -> None:
    framework, more = VARIANTS[variant]
    plain = unguarded(framework, "healthy", tmp_path / "plain", **more)
    watched = guarded(framework, "healthy", tmp_path / "watched", **more)
    assert same(plain.weights(), watched.weights())
    assert watched.incidents == []
    assert watched.findings == []
    assert watched.guard.counters.applied == (12 if "accumulation" not in variant else 4)
    assert set(watched.warned) <= set(plain.warned)
