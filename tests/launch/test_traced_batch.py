"""What a script without a DataLoader is said to have been given."""

from __future__ import annotations

import torch

from stayfinite.launch.traced_batch import TracedBatch
from stayfinite.replay import Tracer


def test_a_target_is_given_to_a_module_and_to_no_model() -> None:
    tracer = Tracer()
    held = TracedBatch(tracer)
    target = torch.tensor([1.0, float("nan")])
    with tracer:
        torch.nn.MSELoss()(torch.ones(2), target)
    told = [(one.summary.name, one.summary.nan) for one in held.operands()]
    assert ("what a module was given", 1) in told
