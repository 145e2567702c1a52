"""Lab: runs one training step under one condition on a copy of the model, and says what was not finite.

The user's model, optimizer, batch, gradients and random numbers are as before when the lab is closed.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.probed_model import Located, Trial
from stayfinite.findings.subjects.run_record import Place
from stayfinite.guarding.locate import Trace
from stayfinite.probe import tree
from stayfinite.probe.swelling import Swelling
from stayfinite.probe.target import Probe, call_loss
from stayfinite.recover.rng import RngState
from stayfinite.watch.finite import nonfinite, summarize, tensors_in
from stayfinite.watch.losses import Loss, as_loss, split_aux

_SPIKE = 1e10
"""A gradient this large is no gradient: normalising a zero vector gives 1e12. Healthy ones stay below 1e6."""
_SEED = 20


@dataclass(slots=True)
class Parts:
    """A model with its loss and optimizer, which belong together."""

    model: nn.Module
    loss: Callable[..., Any] | None
    optimizer: Any


@dataclass(slots=True)
class Run:
    """What one pass gave. `bad` is None where everything was finite."""

    loss: Tensor | None = None
    components: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[tuple[str, Tensor]] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest finite gradient at the output of a module
    bad: str | None = None  # "output", "loss", "component", "gradient", "spike"
    what: str = ""
    error: Exception | None = None


class Lab:
    """Owns the copies; every pass begins from the same state and the same random numbers."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
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
            m.register_forward_hook(_peaking(made.peaks, n))
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
            _judge(made)
        if not keep:
            model.zero_grad(set_to_none=True)
            if parts is self.parts:
                self.restore()
        return made

    @staticmethod
    def loss_of(parts: Parts, batch: Any) -> Loss:
        value = call_loss(parts.model, parts.loss, batch)
        return as_loss(split_aux(value)[0])

    # -- one trial: a pass, judged, and located where it failed ----------------------------------------------

    def trial(
        self, battery: str, condition: str, batch: Any = None, *, expected: str = "normal", **how: Any
    ) -> Trial:
        """One pass as plain data."""
        run = self.run(batch, **how)
        if run.error is not None:
            return Trial(battery, condition, "raised", said(run.error), expected)
        if run.bad is None:
            return Trial(battery, condition, "finite", "", expected)
        return Trial(battery, condition, run.bad, run.what, expected, self.locate(batch, **how))

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
        self._tensors = [(t, t.detach().clone()) for top in tops for t in (*top.parameters(), *top.buffers())]
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


def _judge(run: Run) -> None:
    assert run.loss is not None
    loss = run.loss.detach()
    for name, part in run.components.items():
        if not torch.isfinite(part.detach()):
            run.bad, run.what = "component", f"the loss component {name!r} is {_number(part)}"
            return
    if not torch.isfinite(loss):
        run.bad, run.what = "loss", f"the loss is {_number(loss)}"
        return
    present = [(name, g) for name, g in run.gradients.items() if g is not None]
    bad = nonfinite(present)
    if bad:
        count = "NaN" if bad[0].nan else "Inf"
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        run.bad = "gradient"
        run.what = (
            f"the loss is finite ({_number(loss)}), but the gradient of {bad[0].name} holds {count}{more}"
        )
        return
    for name, gradient in present:
        largest = float(gradient.detach().abs().max()) if gradient.numel() and not gradient.is_sparse else 0.0
        if largest > _SPIKE:
            run.bad, run.what = "spike", f"the gradient of {name} reaches {largest:.3g}"
            return
    for name, largest in run.peaks.items():
        if largest > _SPIKE:
            run.bad, run.what = "spike", f"the gradient at the output of {name} reaches {largest:.3g}"
            return


def _peaking(peaks: dict[str, float], name: str) -> Callable[..., None]:
    """A hook that notes how large the gradient at a module's output gets."""

    def note(gradient: Tensor) -> None:
        largest = float(gradient.detach().abs().max()) if gradient.numel() else 0.0
        if math.isfinite(largest):
            peaks[name] = max(largest, peaks.get(name, 0.0))

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(note)  # type: ignore[no-untyped-call]

    return hook


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


def _number(value: Tensor) -> str:
    return f"{float(value.detach()):.4g}".replace("nan", "NaN").replace("inf", "Inf")


def shown_range(name: str, tensor: Tensor) -> str:
    """ "4 x 10, -1.2 to 0.9"."""
    summary = summarize(name, tensor)
    shape = " x ".join(str(size) for size in summary.shape) or "one value"
    return shape if summary.min is None else f"{shape}, {summary.min:.3g} to {summary.max:.3g}"
