"""What a run does beside its steps: optimizers, schedules, loss scales, clipping, loads, copies. Only listens."""
