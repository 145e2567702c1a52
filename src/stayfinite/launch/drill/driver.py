"""FaultDriver: inside the drilled process, puts one fault after another into the script's steps and sees what happens.

It listens innermost to batches and backward passes, so that a fault looks to everybody as if torch had given it, and
outermost to the updates that the script asks for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from stayfinite.hooks import Listening, listen, listen_to
from stayfinite.launch.drill.injections import InfiniteRate, inf_in_gradient, nan_in_output, with_nan
from stayfinite.launch.drill.journal import Journal
from stayfinite.launch.drill.state_digest import KINDS, Digest, differences, digest, not_finite

GOES_ON = 3
"""Updates that must be applied after a fault before it counts as survived."""
_MOST_AHEAD = 3


class FaultDriver:
    """Waits for `after` updates, then for each fault: notes the state, injects, compares, waits until it goes on."""

    def __init__(self, faults: list[str], after: int, journal: Journal) -> None:
        self._left, self._after, self._journal = list(faults), after, journal
        self._fault = ""
        self._phase = "waiting"
        self._listening = Listening()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._heard: set[int] = set()  # optimizers whose calls of step are listened to
        self.updates = 0
        self._depth = 0
        self._passes = 0  # forward passes since the last update
        self._calls_modules = False
        self._usual = deque([1], maxlen=8)  # passes an update
        self._dataset: Any = None  # whose batches are trained on
        self._candidate: Any = None
        self._reset()

    def _reset(self) -> None:
        self._injected = ""
        self._ahead = 0  # steps that the bad batch was fetched ahead of its own
        self._rate: InfiniteRate | None = None
        self._before: Digest = {}
        self._asked, self._asked_scaler, self._stepped = False, False, False
        self._applied_after = 0
        self._averages: Digest | None = None
        self._compared: dict[str, list[str]] = {}

    def install(self) -> None:
        register_optimizer_step_post_hook(self._updated)
        register_module_forward_pre_hook(self._forward_begins)
        register_module_forward_hook(self._forward_ended, always_call=True)
        for event, around in (
            ("batch", self._batch),
            ("backward", self._backward),
            ("scaler_step", self._scaler_step),
        ):
            self._listening.add(listen(event, around))

    @property
    def _living(self) -> list[Optimizer]:
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    # -- what the script does

    def _batch(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        if threading.current_thread() is not threading.main_thread():
            return batch
        self._candidate = getattr(iterator, "_dataset", None)
        trained_on = self._dataset is not None and self._candidate is self._dataset
        if self._phase == "armed" and self._fault == "nan batch" and trained_on:
            spoiled, tensors = with_nan(batch)
            if tensors:
                self._begin()
                self._hit(f"the first sample of the DataLoader's batch ({_count(tensors, 'float tensor')})")
                return spoiled
        return batch

    def _forward_begins(self, module: Any, arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return None
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return None
        self._calls_modules = True
        self._pass_begins()
        if self._phase == "hit" and self._fault == "nan batch" and not self._injected:
            spoiled, tensors = with_nan(arguments)
            if tensors:
                self._hit(
                    f"the first sample that {type(module).__name__} is given ({_count(tensors, 'float tensor')})"
                )
                return spoiled
        return None

    def _forward_ended(self, module: Any, arguments: Any, output: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return None
        self._depth = max(0, self._depth - 1)
        if (
            self._phase == "hit"
            and self._fault == "nan batch"
            and not self._injected
            and torch.is_grad_enabled()
        ):
            spoiled, done = nan_in_output(output)
            if done:  # token ids cannot be NaN: the first numbers made of them are
                self._hit(f"the first sample of what {type(module).__name__} gives")
                return spoiled
        return None

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._calls_modules:
            self._pass_begins()
        if self._phase == "hit" and self._fault == "nan batch" and not self._injected:
            self._hit("the loss (the script calls no module)")
            several = isinstance(tensors, (list, tuple))
            tensors = [t * torch.nan for t in tensors] if several else tensors * torch.nan
        result = original(tensors, *args, **kwargs)
        if self._phase == "hit" and self._fault == "inf gradient" and not self._injected:
            where = inf_in_gradient(self._living)
            if where is not None:
                self._hit(where)
        return result

    def _step(self, original: Any, optimizer: weakref.ref[Optimizer], *args: Any, **kwargs: Any) -> Any:
        """The script (or its scaler) asks for an update."""
        living = optimizer()
        if self._rate is not None:
            self._rate.take_out()  # whoever put the rate of the refused step back
        if self._phase == "armed" and self._fault == "bad update":  # forward passes come in its closure
            self._begin()
        if self._phase == "hit":
            self._asked = True
            if self._fault == "bad update" and not self._injected and living is not None:
                self._rate = InfiniteRate(living)
                if self._rate.possible:
                    self._rate.put_in()
                    self._hit(f"one update of {type(living).__name__}")
        elif self._phase == "following":
            self._look_at_averages()
        try:
            return original(*args, **kwargs)
        finally:
            if self._rate is not None:
                self._rate.take_out()
            if self._phase == "hit" and self._injected:
                self._asked, self._phase = True, "settling"

    def _scaler_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        hit = self._phase == "hit"
        result = original(*args, **kwargs)
        if hit and self._injected:
            self._asked_scaler, self._phase = True, "settling"
        return result

    def _updated(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
        self.updates += 1
        self._usual.append(max(1, self._passes))
        self._passes = 0
        self._dataset, self._candidate = self._candidate, None
        if self._phase == "waiting" and self.updates >= self._after:
            self._arm()
        elif self._phase == "hit":
            self._stepped = True
        elif self._phase == "following":
            self._applied_after += 1
            if self._applied_after >= GOES_ON:
                self._conclude()

    # -- one fault

    def _arm(self) -> None:
        self._fault, self._phase = self._left[0], "armed"
        for optimizer in self._living:
            if id(optimizer) in self._heard:
                continue
            self._heard.add(id(optimizer))
            known = weakref.ref(optimizer)
            listen_to(
                optimizer, "step", lambda original, *a, _o=known, **k: self._step(original, _o, *a, **k)
            )

    def _pass_begins(self) -> None:
        if self._phase == "armed":
            self._begin()
        elif self._phase == "settling" or (
            self._phase == "hit" and self._injected and self._passes >= max(self._usual)
        ):
            self._settle()
        elif self._phase == "following" and self._applied_after == 1:
            self._averages = digest(self._living, ("averages",))
        self._passes += 1

    def _begin(self) -> None:
        self._before = digest(self._living)
        self._phase = "hit"

    def _hit(self, where: str) -> None:
        self._injected = where
        self._tell(at=self.updates, script=self._trains_with())

    def _settle(self) -> None:
        """The step that was hit is over, and nothing of the next one has happened yet."""
        after = digest(self._living)
        if self._not_yet_there(after):
            self._before, self._phase, self._ahead = after, "hit", self._ahead + 1
            self._asked, self._asked_scaler, self._stepped = False, False, False
            return
        for kind in KINDS[:3]:
            changed = differences(self._before, after, kind)
            if changed is not None:
                self._compared[kind] = changed
        self._phase = "following"
        self._tell(bad=not_finite(self._living)[:3])

    def _not_yet_there(self, after: Digest) -> bool:
        """A loader that fetches batches ahead hands the bad one out some steps later; until then all is healthy."""
        from_loader = self._fault == "nan batch" and "DataLoader" in self._injected
        applied = self._stepped and bool(differences(self._before, after, KINDS[0]))
        return from_loader and applied and self._ahead < _MOST_AHEAD and not not_finite(self._living)

    def _look_at_averages(self) -> None:
        """A loop updates them after its update, and a refused one's are put back by the next backward pass."""
        now = digest(self._living, ("averages",))
        if self._applied_after == 0 and "averages" not in self._compared:
            changed = differences(self._before, now, "averages")
            if changed is not None:
                self._compared["averages"] = changed
        elif self._averages is not None:
            if self._averages != now:  # in a healthy step, too: they say nothing of the one that was hit
                self._compared.pop("averages", None)
            self._averages = None

    def _conclude(self) -> None:
        bad = not_finite(self._living)[:3]
        self._tell(bad=bad, over=True)
        self._left.pop(0)
        self._reset()
        if self._left and not bad:
            self._arm()
        else:
            os._exit(0)  # as `stayfinite run` has replaced it: what was found is written first

    def _tell(self, **more: Any) -> None:
        self._journal.write(
            fault=self._fault,
            injected=self._injected,
            asked=self._asked,
            asked_scaler=self._asked_scaler,
            stepped=self._stepped,
            applied_after=self._applied_after,
            compared=self._compared,
            phase=self._phase,
            **more,
        )

    def ended(self, code: int) -> None:
        """The script came to its end by itself."""
        self._journal.write(ended=code, updates=self.updates)
        if self._fault and self._phase in ("hit", "settling", "following"):
            if self._phase == "settling":
                self._settle()
            self._tell(bad=not_finite(self._living)[:3])

    def _trains_with(self) -> str:
        optimizers = self._living
        dtypes = {str(p.dtype)[6:] for o in optimizers for g in o.param_groups for p in g["params"]}
        return f"{', '.join(type(o).__name__ for o in optimizers)}, {' and '.join(sorted(dtypes))} parameters"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
