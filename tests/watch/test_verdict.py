"""The numbers of a step on their way to the host: one transfer, all ranks joined, the bad one named."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stayfinite.watch.host import Fetch, pack
from stayfinite.watch.losses import Loss, as_loss
from stayfinite.watch.verdict import Marks, Numbers, StepVerdict

NAN, INF = math.nan, math.inf


def numbers(
    losses: list[Loss], norm: float = 1.0, others: list[list[float]] | None = None, scale: float | None = None
) -> Numbers:
    """This rank's numbers, above the rows (norm, update ratio, loss, losses seen, scale, marks) of other ranks."""

    def gather(row: Tensor) -> Tensor:
        return torch.stack([row, *(torch.tensor(other, dtype=row.dtype) for other in others or [])])

    as_tensor: Callable[[float], Tensor] = torch.tensor
    return Numbers(
        losses,
        as_tensor(norm),
        None if scale is None else as_tensor(scale),
        None,
        {},
        gather if others else None,
    )


def loss(value: float, **parts: float) -> Loss:
    if not parts:
        return as_loss(torch.tensor(value))
    return as_loss(
        {"loss": torch.tensor(value), **{name: torch.tensor(part) for name, part in parts.items()}}
    )


def test_micro_batches_are_averaged_with_their_components() -> None:
    verdict = numbers([loss(1.0, kl=0.1), loss(3.0, kl=0.3)], norm=2.0, scale=64.0).verdict()
    assert verdict.loss == verdict.own_loss == 2.0 and verdict.components == {"kl": pytest.approx(0.2)}
    assert (verdict.grad_norm, verdict.scale, verdict.bad_rank) == (2.0, 64.0, None)
    assert verdict.loss_is_finite and verdict.norm_is_finite and verdict.scale_is_finite


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_one_bad_micro_batch_or_component_is_seen(value: float) -> None:
    verdict = numbers([loss(1.0, kl=0.1, rec=0.2), loss(value, kl=value, rec=0.3)]).verdict()
    assert not verdict.loss_is_finite and verdict.bad_components == ["kl"]
    assert numbers([loss(1.0), loss(value)]).bad() == 1.0
    assert numbers([loss(1.0)], norm=value).bad() == 1.0
    assert numbers([loss(1.0, kl=value)]).bad() == 0.0, "what is not trained is not a reason to refuse"
    assert numbers([loss(1.0)]).bad() == 0.0


def test_opposite_infinities_do_not_cancel() -> None:
    assert not numbers([loss(INF), loss(-INF)]).verdict().loss_is_finite


def test_no_loss_at_all() -> None:
    verdict = numbers([], norm=3.0).verdict()
    assert verdict.loss is None and verdict.loss_is_finite and verdict.grad_norm == 3.0


def ranks(norms: list[float], losses: list[float]) -> StepVerdict:
    """The verdict of two or more ranks, as rank 0 gathers it."""
    others = [[norm, 0.0, value, 1.0, 0.0, 1.0] for norm, value in zip(norms[1:], losses[1:], strict=True)]
    return numbers([loss(losses[0])], norms[0], others).verdict()


def test_ranks_decide_on_the_same_numbers() -> None:
    verdict = ranks([1.0, 3.0], [2.0, 4.0])
    assert (verdict.loss, verdict.own_loss, verdict.grad_norm, verdict.bad_rank) == (3.0, 2.0, 3.0, None)


def test_what_a_rank_sends_does_not_depend_on_what_it_saw() -> None:
    """Collectives need rows of one length and dtype: observed names, components and number of losses stay at home."""
    rows: list[Tensor] = []

    def gather(row: Tensor) -> Tensor:
        rows.append(row)
        return row.unsqueeze(0)

    one = torch.tensor(1.0)
    several = {"a": (one, one), "b": (one, one)}
    wide = as_loss(torch.tensor(1e300, dtype=torch.float64))
    for losses, observed in (
        ([], {}),
        ([loss(1.0)], several),
        ([loss(1.0, kl=2.0), loss(3.0, kl=0.1)], {}),
        ([wide], {}),
    ):
        Numbers(losses, one, None, None, observed, gather)
        Numbers(losses, one, one, one, observed, gather)
    assert {(row.shape, row.dtype) for row in rows} == {((6,), torch.float64)}, "48 bytes"


def test_a_rank_without_a_loss_has_no_say_in_it() -> None:
    verdict = numbers([loss(2.0)], 1.0, [[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]]).verdict()
    assert verdict.loss == 2.0 and verdict.bad_rank is None


def test_the_rank_with_the_bad_loss_is_named_although_all_norms_are_bad() -> None:
    """DDP has averaged the gradients: one rank's NaN is everybody's."""
    verdict = ranks([NAN, NAN, NAN], [1.0, 1.0, NAN])
    assert verdict.bad_rank == 2 and math.isnan(verdict.bad_loss or 0.0) and verdict.own_loss == 1.0


def test_a_bad_norm_names_a_rank_only_where_it_can_tell() -> None:
    assert ranks([1.0, INF], [1.0, 1.0]).bad_rank == 1
    assert ranks([NAN, NAN], [1.0, 1.0]).bad_rank is None
    assert math.isnan(ranks([1.0, NAN], [1.0, 1.0]).grad_norm), "a maximum must not hide a NaN"


def test_a_loss_scale_that_is_bad_on_another_rank_is_bad_here() -> None:
    others = [[1.0, 0.0, 1.0, 1.0, INF, 1.0], [1.0, 0.0, 1.0, 1.0, 32.0, 1.0]]
    assert not numbers([loss(1.0)], 1.0, others, scale=64.0).verdict().scale_is_finite
    assert numbers([loss(1.0)], 1.0, others[1:], scale=64.0).verdict().scale == 32.0


def test_parts_of_a_norm_are_joined_and_name_no_rank() -> None:
    """Gradients sharded over the ranks: 9 is has_gradients and is_part."""
    part = Marks(is_part=True)

    def verdict(own: float, other: float) -> StepVerdict:
        def gather(row: Tensor) -> Tensor:
            return torch.stack([row, torch.tensor([other, 0.0, 1.0, 1.0, 0.0, 9.0], dtype=row.dtype)])

        return Numbers([loss(1.0)], torch.tensor(own), None, None, {}, gather, None, part).verdict()

    assert verdict(3.0, 4.0).grad_norm == 5.0
    bad = verdict(3.0, NAN)
    assert not bad.norm_is_finite and bad.bad_rank is None


def test_packing_keeps_what_float32_cannot_hold() -> None:
    wide = pack([torch.tensor(1.5, dtype=torch.float16), torch.tensor(1e300, dtype=torch.float64)])
    assert wide.dtype is torch.float64 and wide.tolist() == [1.5, 1e300]
    assert pack([torch.tensor(2), torch.tensor(1.5)]).dtype is torch.float32
    assert Fetch(torch.tensor([1.0, NAN])).read()[0] == 1.0
