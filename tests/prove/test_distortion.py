"""How far healthy values moved: what was only rounding before may move by as much as it was off."""

import torch

from stayfinite.prove.expression import distortion


def test_values_that_moved_beyond_rounding_are_told() -> None:
    before, after = [torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.2])]
    moved = distortion(before, after, [None], 0)
    assert moved is not None and moved > 0.01


def test_a_cancelling_difference_may_move_by_its_noise_and_no_further() -> None:
    torch.manual_seed(0)
    values = 101325.0 + torch.randn(64, 16)
    by_means = [(values * values).mean(1) - values.mean(1) ** 2]
    in_two_passes = [values.var(1, unbiased=False)]
    noise = 4 * 1.2e-7 * float((values * values).mean(1).max())
    assert distortion(by_means, in_two_passes, [None], 0) != 0.0  # most of it is rounding
    assert distortion(by_means, in_two_passes, [None], 0, noise) == 0.0
    assert distortion(by_means, [by_means[0] + 2 * noise], [None], 0, noise) != 0.0
