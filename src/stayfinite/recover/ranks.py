"""Ranks: all of them act together. Every rank learns every rank's numbers in one small collective."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stayfinite.recover.roll_call import RollCall, trained_by_all


class RankLost(RuntimeError):
    """Another rank has died, or did not come to the decision that all ranks take together."""


def world_size() -> int:
    """1 where torch.distributed is not in use."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's rank; where torch.distributed is not in use, its number among the launcher's processes, or 0."""
    if world_size() > 1:
        return dist.get_rank()
    ranks, number = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    return int(number) if ranks.isdigit() and number.isdigit() and int(ranks) > 1 else 0


_asked: dict[str, int] = {}
_ANSWER_SECONDS = 60.0


def said_by_the_first(name: str, make: Callable[[], str]) -> str:
    """What `make` gives on the rank that asks first, for all ranks; no collective, and nobody waits for a late one.

    The ranks speak through the store they met at, so that nothing of the script's own traffic is touched.
    """
    if world_size() == 1:
        return make()
    _asked[name] = _asked.get(name, 0) + 1
    key, store = f"stayfinite/{name}/{_asked[name]}", dist.distributed_c10d._get_default_store()
    if store.add(f"{key}/asked", 1) == 1:
        store.set(key, text := make())
        return text
    try:
        store.wait([key], timedelta(seconds=_ANSWER_SECONDS))
        return bytes(store.get(key)).decode()
    except RuntimeError:  # it timed out: the first has died before it could say it
        return make()


_groups: tuple[Any, Any] | None = None  # the script's own, and that of all guards beside it


class Ranks:
    """The ranks that train these models together, in a process group of the guards' own.

    Under `DistributedDataParallel.join()` ranks make different numbers of steps, and nobody answers a rank that asks
    once more than the others. There each decides alone, from gradients that are averaged and so the same everywhere.
    """

    def __init__(
        self,
        device: torch.device,
        models: Iterable[nn.Module],
        name: str = "",
        tell: Callable[[str, str], None] | None = None,
    ) -> None:
        """`name`: the line that made the guard. `tell` hears of ranks that did not come there."""
        self._device, self._models, self._tell = device, list(models), tell
        self._all_have_it: bool | None = True if trained_by_all(self._models) else None
        self._roll_call = RollCall(name)
        self._ignored = False

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Decide as if there were no other ranks: where they cannot be expected to come."""
        before, self._ignored = self._ignored, True
        try:
            yield
        finally:
            self._ignored = before

    @property
    def joined_unevenly(self) -> bool:
        """Some model has been given to torch's `Join`."""
        configs = (getattr(model, "_join_config", None) for model in self._models)
        return any(config is not None and config.enable for config in configs)

    @property
    def apart(self) -> bool:
        """There are other ranks, but not at every step."""
        return world_size() > 1 and self.joined_unevenly

    @property
    def together(self) -> bool:
        """There are other ranks, and they come to every decision."""
        return not self._ignored and world_size() > 1 and not self.joined_unevenly and self._is_shared()

    @property
    def alone(self) -> bool:
        """There are other ranks, but they do not have this guard."""
        return world_size() > 1 and not self._is_shared()

    @property
    def key(self) -> str:
        """The same on every rank that has this guard."""
        return self._roll_call.key

    def _is_shared(self) -> bool:
        if self._all_have_it is None:
            self._all_have_it = self._roll_call.all_came()
            if not self._all_have_it and self._tell is not None:
                self._tell(
                    "warning",
                    f"not all {world_size()} ranks have made this guard, so rank {rank()} decides alone about what it "
                    "trains. If all of them train it, make the guard on every rank, at the same line.",
                )
        return self._all_have_it

    @property
    def group(self) -> Any:
        """The guards' own process group, None with one rank. The first time, all ranks must ask for it together."""
        global _groups
        world = dist.group.WORLD if world_size() > 1 else None
        if world is None:
            return None
        if _groups is None or _groups[0] is not world:
            _groups = world, _new_group(_timeout(self._device))
        return _groups[1]

    @property
    def timeout(self) -> timedelta:
        """How long the script's own group waits."""
        return _timeout(self._device) or timedelta(minutes=30)

    def gather(self, numbers: Tensor) -> Tensor:
        """A (ranks, len(numbers)) table with one row a rank, the same on every rank; no transfer to the host."""
        if not self.together:
            return numbers.unsqueeze(0)
        row = numbers.contiguous()
        # gloo takes no other shape
        flat = torch.empty(world_size() * row.numel(), dtype=row.dtype, device=row.device)
        # The older name warns from torch 2.13 on.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        try:
            all_gather(flat, row, group=self.group)
        except RuntimeError as error:
            raise RankLost(
                f"rank {rank()}: another rank has died, or did not come to this step's decision in time "
                f"({_first_sentence(error)}). Look at the last words of the other ranks"
            ) from error
        return flat.view(world_size(), -1)

    def from_rank_0(self, content: Tensor) -> Tensor:
        """Rank 0's, on every rank, on the ranks' device. All must ask, with as many bytes."""
        if not self.together:
            return content
        sent = content.to(self._device)
        try:
            dist.broadcast(sent, src=0, group=self.group)
        except RuntimeError as error:
            raise RankLost(
                f"rank {rank()}: a rank has died while all went back to the last good state "
                f"({_first_sentence(error)}). The state here is half-way back: go on from a checkpoint"
            ) from error
        return sent

    def gathering(self) -> Callable[[Tensor], Tensor] | None:
        """`gather`, or None where there is nobody to gather from."""
        return self.gather if self.together else None

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one: what one rank sees, all must act on. All must ask."""
        return self.any_of(flag)[0]

    def any_of(self, *flags: bool) -> list[bool]:
        """The same of several, in one go."""
        if not self.together:
            return list(flags)
        table = self.gather(torch.tensor([float(flag) for flag in flags], device=self._device))
        return [bool(column) for column in table.any(0).tolist()]

    def union(self, names: Sequence[str]) -> list[str]:
        """The names that any rank gives, first rank first; the same on every rank. All must ask."""
        return joined(self.texts(packed(names)))

    def texts(self, mine: bytes) -> list[bytes]:
        """Every rank's, of whatever length; the same list on every rank. All must ask."""
        return [text for text, _ in self.exchange(mine)]

    def exchange(self, mine: bytes, *numbers: int) -> list[tuple[bytes, list[int]]]:
        """Every rank's text and whole numbers. Where no rank has a text it is one collective."""
        if not self.together:
            return [(mine, list(numbers))]
        own = torch.tensor(list(mine), dtype=torch.uint8)
        heads = self.gather(
            torch.tensor([own.numel(), *numbers], dtype=torch.int64, device=self._device)
        ).tolist()
        longest, texts = max(length for length, *_ in heads), [b""] * len(heads)
        if longest:
            padded = torch.zeros(longest, dtype=torch.uint8)  # all rows of one length
            padded[: own.numel()] = own
            rows = self.gather(padded.to(self._device)).tolist()
            texts = [bytes(row[:length]) for row, (length, *_) in zip(rows, heads, strict=True)]
        return [(text, rest) for text, (_, *rest) in zip(texts, heads, strict=True)]


def packed(names: Sequence[str]) -> bytes:
    """Names as one text."""
    return "\0".join(names).encode()


def joined(texts: Iterable[bytes]) -> list[str]:
    """The names of several such texts, each once."""
    return list(dict.fromkeys(name for text in texts if text for name in text.decode().split("\0")))


def _new_group(timeout: timedelta | None) -> Any:
    """All ranks must come. One that dies now would be waited for for minutes at the store, and for ever by gloo, which
    knows no time-out while it connects: that is done beside, and not waited for any longer."""
    store: Any = dist.distributed_c10d._get_default_store()
    patience = store.timeout
    if timeout is not None:
        store.set_timeout(timeout)
    try:
        if timeout is None or dist.get_backend() != "gloo":
            return dist.new_group(timeout=timeout)
        return _within(timeout, lambda: dist.new_group(timeout=timeout))
    finally:
        store.set_timeout(patience)


def _within(timeout: timedelta, make: Callable[[], Any]) -> Any:
    made: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    beside = threading.Thread(target=run, daemon=True)
    beside.start()
    beside.join(timeout.total_seconds() + 1)
    if made:
        return made[0]
    raise failed[0] if failed else RuntimeError(f"not connected after {timeout.total_seconds():.0f} s")


def _timeout(device: torch.device) -> timedelta | None:
    """As long as the script's own group waits, and no shorter: ranks may evaluate or load alone for many minutes."""
    backend = dist.group.WORLD._get_backend(device) if dist.group.WORLD is not None else None
    return getattr(getattr(backend, "options", None), "_timeout", None)


def _first_sentence(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
