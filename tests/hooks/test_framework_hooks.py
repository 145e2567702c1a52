"""Hooks of frameworks: never imported by us, and heard again where somebody has put something else in their place."""

from __future__ import annotations

import subprocess
import sys

from stayfinite.hooks import listen_if_lost, listen_to


def test_a_framework_that_is_not_imported_stays_so() -> None:
    code = (
        "import sys\n"
        "from stayfinite.hooks import FRAMEWORK_STEPS, imported, listen, missing\n"
        "heard = [listen(event, print) for event in (*FRAMEWORK_STEPS, 'accelerate_loader')]\n"
        "assert not any(map(imported, FRAMEWORK_STEPS)) and not missing()\n"
        "assert not {'transformers', 'lightning', 'accelerate'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _Optimizer:
    def step(self) -> str:
        return "own"


def test_a_replaced_method_is_heard_for_a_while() -> None:
    optimizer, heard = _Optimizer(), []

    def around(original: object, *args: object) -> object:
        heard.append("step")
        return original()  # type: ignore[operator]

    listening = listen_to(optimizer, "step", around)
    assert listen_if_lost(optimizer, "step", around) is not None
    assert optimizer.step() == "own" and heard == ["step"]  # not lost: heard once
    optimizer.step = lambda: "other"  # type: ignore[method-assign]
    assert optimizer.step() == "other" and heard == ["step"]
    with listen_if_lost(optimizer, "step", around):
        assert optimizer.step() == "other" and heard == ["step", "step"]
    assert optimizer.step() == "other" and heard == ["step", "step"]
    listening.stop()
