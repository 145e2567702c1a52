"""Lab: runs one training step under one condition on a copy of the model, and says what was not finite.

The user's model, optimizer, batch, gradients and random numbers are as before when the lab is closed.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.probed_model import Located, Trial
from stayfinite.findings.subjects.run_record import Place
from stayfinite.guarding.locate import Trace
from stayfinite.probe import tree
from stayfinite.probe.one_run import Run, judge, peaking
from stayfinite.probe.swelling import Swelling
from stayfinite.probe.target import Probe, call_loss
from stayfinite.recover.rng import RngState
from stayfinite.watch.finite import summarize, tensors_in
from stayfinite.watch.losses import Loss, as_loss, split_aux

_SEED = 20


@dataclass(slots=True)
class Parts:
    """A model with its loss and optimizer, which belong together."""

    model: nn.Module
    loss: Callable[..., Any] | None
    optimizer: Any


class Lab:
    """Owns the copies; every pass begins from the same state and the same random numbers."""

    def __init__(self, probe: Probe, progress: Callable[[str], None] = lambda _: None) -> None:
        self.probe, self._progress = probe, progress
        self._rng = RngState.capture()
        torch.manual_seed(_SEED)
        self.original_batch = probe.make_batch()
        self.batch = tree.copied(self.original_batch)
        self.copies = True
        given = Parts(probe.model, probe.loss, probe.optimizer)
        self._original = _State(given)
        try:
            self.parts: Parts = copy.deepcopy(given)
        except Exception:  # noqa: BLE001 - tensors in graphs, locks, handles: then the model itself, put back afterwards
            self.parts, self.copies = given, False
        if self.copies and any(is_lazy(p) for p in self.parts.model.parameters()):
            self.run_raw(self.parts)  # layers that take their shape from the first batch
        self._kept = _State(self.parts)
        if self.copies and not self._copy_is_used():
            self._original.restore(with_gradients=True)
            self.parts, self.copies, self._kept = given, False, self._original

    def close(self) -> None:
        """Put back what a pass on the user's own model may have changed, and the random numbers."""
        self._original.restore(with_gradients=True)
        self._rng.restore()

    def restore(self) -> None:
        """The copy as it was at the beginning."""
        self._kept.restore()

    def _copy_is_used(self) -> bool:
        """A loss that reads the model from its surroundings computes with the original, whatever it is given."""
        run = self.run()
        trained = [p for p in self.parts.model.parameters() if p.requires_grad]
        return run.error is not None or not trained or any(g is not None for g in run.gradients.values())

    # -- one pass --------------------------------------------------------------------------------------------

    def run(
        self,
        batch: Any = None,
        *,
        training: bool = True,
        backward: bool = True,
        parts: Parts | None = None,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        trace: Trace | None = None,
        keep: bool = False,
    ) -> Run:
        """Forward and backward on the batch. `keep` leaves gradients and state for the caller."""
        parts = parts or self.parts
        batch = tree.copied(self.batch if batch is None else batch)
        made = Run()
        model = parts.model
        watched = _watched_inputs(model, batch) if backward else {}
        batch = tree.replaced(batch, watched)
        torch.manual_seed(_SEED)
        model.train(training)
        model.zero_grad(set_to_none=True)
        hooks = [
            model.register_forward_hook(lambda _m, _a, out: made.outputs.extend(tensors_in(out, "output")))
        ]
        hooks += [
            m.register_forward_hook(peaking(made.peaks, n))
            for n, m in model.named_modules()
            if n and backward
        ]
        following = trace.following(batch) if trace is not None else nullcontext()
        try:
            with following, around(), torch.set_grad_enabled(backward):
                loss = self.loss_of(parts, batch)
                made.loss, made.components = loss.total, loss.components
                if backward and loss.total.requires_grad:
                    loss.total.backward()  # type: ignore[no-untyped-call]
                if trace is not None:
                    trace.saw_loss(loss.total)
        except Exception as error:  # noqa: BLE001 - what the user's code raises is an answer
            made.error = error
        finally:
            for hook in hooks:
                hook.remove()
        made.gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        made.gradients |= {f"d {name}": t.grad for name, t in watched.items()}
        if made.error is None:
            judge(made)
        if not keep:
            model.zero_grad(set_to_none=True)
            if parts is self.parts:
                self.restore()
        return made

    def run_raw(self, parts: Parts) -> None:
        """One forward pass for its side effects alone."""
        try:
            with torch.no_grad():
                self.loss_of(parts, tree.copied(self.batch))
        except Exception as error:  # noqa: BLE001 - the first battery says what is wrong
            self._progress(said(error))

    @staticmethod
    def loss_of(parts: Parts, batch: Any) -> Loss:
        value = call_loss(parts.model, parts.loss, batch)
        return as_loss(split_aux(value)[0])

    # -- one trial: a pass, judged, and located where it failed ----------------------------------------------

    def trial(
        self, battery: str, condition: str, batch: Any = None, *, expected: str = "normal", **how: Any
    ) -> Trial:
        """One pass as plain data."""
        self._progress(f"{battery}: {condition}")
        run = self.run(batch, **how)
        if run.error is not None:
            return Trial(battery, condition, "raised", said(run.error), expected)
        if run.bad is None:
            return Trial(battery, condition, "finite", "", expected)
        return Trial(
            battery, condition, run.bad, run.what, expected, self.locate(batch, **how), run.spares_weights
        )

    def locate(self, batch: Any = None, **how: Any) -> Located:
        """The same pass once more under the tracer: where the bad value was born, and why."""
        trace = Trace()
        again = self.run(batch, trace=trace, **how)
        step = trace.evidence()
        if step is None and again.error is not None:
            step = trace.failure_of(_failure(again.error))
        if step is None and again.bad == "spike":
            return self._where_it_swells(batch, **how)
        return located(step)

    def _where_it_swells(self, batch: Any, **how: Any) -> Located:
        around = how.pop("around", nullcontext)
        swelling = Swelling()

        @contextmanager
        def both() -> Iterator[None]:
            with around(), swelling:
                yield

        self.run(batch, around=both, **how)
        return swelling.located()

    @contextmanager
    def fresh_parts(self) -> Iterator[Parts | None]:
        """Another copy, for conditions that change the model itself; None where it cannot be copied."""
        yield copy.deepcopy(self.parts) if self.copies else None

    def own_optimizer(self, parts: Parts) -> Optimizer | None:
        """The optimizer over the parameters of these parts."""
        made = parts.optimizer
        if made is None or isinstance(made, Optimizer):
            return made
        built = made(parts.model.parameters())
        return built if isinstance(built, Optimizer) else None


class _State:
    """Parameters, buffers, modes and gradients of a model (and of a loss that is one) as they were."""

    def __init__(self, parts: Parts) -> None:
        tops = [parts.model, *([parts.loss] if isinstance(parts.loss, nn.Module) else [])]
        self._tensors = [
            (t, t.detach().clone())
            for top in tops
            for t in (*top.parameters(), *top.buffers())
            if not is_lazy(t)
        ]
        self._modes = [(module, module.training) for top in tops for module in top.modules()]
        self._gradients = [(p, p.grad) for top in tops for p in top.parameters()]

    @torch.no_grad()
    def restore(self, *, with_gradients: bool = False) -> None:
        for tensor, value in self._tensors:
            tensor.data.copy_(value)
        for module, mode in self._modes:
            module.training = mode
        if with_gradients:
            for parameter, gradient in self._gradients:
                parameter.grad = gradient


def _watched_inputs(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """A model without parameters is trained by nobody: then the gradient of its inputs is what counts."""
    if any(p.requires_grad for p in model.parameters()):
        return {}
    return {name: tensor.requires_grad_() for name, tensor in tree.inputs(batch).items()}


def located(step: FailedStep | None) -> Located:
    """The evidence in a few fields."""
    if step is None:
        return Located()
    found = explain(step)
    top = found[0] if found else None
    birth = step.birth.birth if step.birth is not None else None
    return Located(
        op=step.birth.op if step.birth is not None else None,
        file=birth.file if birth is not None else top.file if top is not None else None,
        line=birth.line if birth is not None else top.line if top is not None else None,
        source=birth.source if birth is not None else None,
        module=birth.module if birth is not None else None,
        phase=step.phase,
        cause=top.cause if top is not None else None,
        explained_by=top.code if top is not None else None,
        message=top.message if top is not None else None,
        fix=top.fix if top is not None else None,
    )


def said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def _failure(error: Exception) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return Failure(
        type(error).__name__,
        str(error),
        Place(last.filename if last else None, last.lineno if last else None),
    )


def shown_range(name: str, tensor: Tensor) -> str:
    """ "4 x 10, -1.2 to 0.9"."""
    summary = summarize(name, tensor)
    shape = " x ".join(str(size) for size in summary.shape) or "one value"
    return shape if summary.min is None else f"{shape}, {summary.min:.3g} to {summary.max:.3g}"
