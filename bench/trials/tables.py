"""What a trial is drawn from: one table a dimension, the first entry of each the simplest."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

# -- models: each takes a batch (x, w), w being the weights of the samples


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


class Cnn(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.ReLU(),
            nn.Dropout(0.2), nn.Flatten(), nn.Linear(27, 1),
        )  # fmt: skip


class Gpt(nn.Module):
    """Token ids, a causal mask of -inf in a buffer, dropout, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.qkv = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 12)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4, 9, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.drop(((q @ k.transpose(1, 2)) / 2 + self.mask).softmax(-1) @ v)
        return self.head(h).logsumexp(-1).mean(1, keepdim=True)


class Sparse(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(12, 1))


class Half(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 1))
        self.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16()).float()


class Registers(nn.Module):
    """Its running mean is registered in the first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if "seen" not in self._buffers:
            self.register_buffer("seen", torch.zeros(4))
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return self.linear(x - self.seen)


class Criterion(nn.Module):
    """The mean square, weighted; with `center`, of what is left after a running mean in a buffer."""

    def __init__(self, center: bool = False) -> None:
        super().__init__()
        if center:
            self.register_buffer("center", torch.zeros(1))

    def forward(self, out: Tensor, w: Tensor) -> Tensor:
        out = out.float()
        if "center" in self._buffers:
            self.center.mul_(0.9).add_(0.1 * out.detach().mean())
            out = out - self.center
        return (out.square() * w).mean()


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "mlp": lambda: [Mlp()],
    "cnn": lambda: [Cnn()],
    "gpt": lambda: [Gpt()],
    "sparse": lambda: [Sparse()],
    "gan": lambda: [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), Mlp()],
    "loss buffers": lambda: [Mlp(), Criterion(center=True)],
    "half": lambda: [Half()],
    "registers": lambda: [Registers()],
}
TAKES_IDS = ("gpt", "sparse")


# -- optimizers


class Own(torch.optim.Optimizer):
    """A user's own: the sign of a running mean."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01, "beta": 0.8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["mean"] = state.get("mean", torch.zeros_like(p)) * group["beta"] + p.grad
                    state["count"] = state.get("count", 0) + 1
                    p.sub_(state["mean"].sign() * group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, 0.05),
    "momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "momentum foreach": lambda p: optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, 0.02),
    "adam foreach": lambda p: optim.Adam(p, 0.02, foreach=True),
    "adamw": lambda p: optim.AdamW(p, 0.02),
    "amsgrad": lambda p: optim.Adam(p, 0.02, amsgrad=True),
    "rmsprop centered": lambda p: optim.RMSprop(p, 0.01, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.05),
    "adadelta": lambda p: optim.Adadelta(p, 0.5),
    "nadam": lambda p: optim.NAdam(p, 0.02),
    "radam": lambda p: optim.RAdam(p, 0.02),
    "lbfgs": lambda p: optim.LBFGS(p, 0.1, max_iter=3, history_size=3),
    "own": Own,
    "sgd fused": lambda p: optim.SGD(p, 0.05, fused=True),
    "momentum fused": lambda p: optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam fused": lambda p: optim.Adam(p, 0.02, fused=True),
    "adamw fused": lambda p: optim.AdamW(p, 0.02, amsgrad=True, fused=True),
}
_ADAGRAD = optim.Adagrad([torch.zeros(1, requires_grad=True)], fused=True)
if getattr(
    _ADAGRAD, "_step_supports_amp_scaling", False
):  # of torch 2.6 it cannot skip an update on the device
    OPTIMIZERS["adagrad fused"] = lambda p: optim.Adagrad(p, 0.05, fused=True)
TAKE_SPARSE = ("sgd", "momentum", "adagrad")

# -- schedules, averages

SCHEDULES: dict[str, Callable[[optim.Optimizer], list[Any]]] = {
    "none": lambda o: [],
    "step": lambda o: [schedules.StepLR(o, 2, 0.7)],
    "cosine": lambda o: [schedules.CosineAnnealingLR(o, 6)],
    "one cycle": lambda o: [schedules.OneCycleLR(o, 0.05, total_steps=24, cycle_momentum=False)],
    "lambda": lambda o: [schedules.LambdaLR(o, lambda step: 0.9**step)],
    "sequential": lambda o: [
        schedules.SequentialLR(o, [schedules.ConstantLR(o, 0.5, 2), schedules.ExponentialLR(o, 0.9)], [2])
    ],
    "plateau": lambda o: [
        schedules.ReduceLROnPlateau(o, factor=0.5, patience=0)
    ],  # once an epoch, by the script
    "warm restarts": lambda o: [schedules.CosineAnnealingWarmRestarts(o, 3)],
    "two": lambda o: [schedules.StepLR(o, 2, 0.7), schedules.ExponentialLR(o, 0.95)],
}


class HandMade(nn.Module):
    """An average as people write it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shadow = nn.ParameterList([p.detach().clone() for p in model.parameters()]).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.shadow, model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)


AVERAGES: dict[str, Callable[[nn.Module], list[Any]]] = {
    "none": lambda model: [],
    "AveragedModel": lambda model: [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))],
    "hand-made": lambda model: [HandMade(model)],
}

# -- faults

DATA_FAULTS = ("nan in the batch", "inf in the batch", "nan in the weights")
GRADIENT_FAULTS = ("nan gradient", "inf gradient")
LEFT = ("KeyError", "KeyboardInterrupt", "break", "close")
CONTINUE = ("continue", "nan, continue")  # of a healthy body, and `if not isfinite(loss): continue`
FAULTS = ("none", *DATA_FAULTS, *GRADIENT_FAULTS, "nan rate", "bad moment", *LEFT, *CONTINUE)
SIMPLER = {
    "inf in the batch": "nan in the batch", "nan in the weights": "nan in the batch", "inf gradient": "nan gradient",
    "KeyboardInterrupt": "KeyError", "break": "KeyError", "close": "KeyError",
}  # fmt: skip
"""What to try in place of a fault when a trial is shrunk."""
PLACES = ("before", "forward", "backward", "step begins", "step ends")


@dataclass(frozen=True)
class Spec:
    """One trial. The defaults are the simplest choices; a failing trial is shrunk towards them."""

    model: str = "mlp"
    optimizer: str = "sgd"
    split: bool = False  # body and head have an optimizer each
    schedule: str = "none"
    scaler: str = "none"
    accumulate: int = 1
    average: str = "none"
    way: str = "step"
    clip: bool = False
    sync: bool = True
    locate: bool = False
    fault: str = "none"
    at: int = 1  # the update it hits
    micro: int = 0  # the micro-batch of that update
    turn: int = 0  # whose turn it is, in a GAN; which optimizer has the bad gradient, if there are two
    place: str = "before"  # where a body is left
    resume: int | None = None  # saved and restored into fresh objects before this update
    resume_at: str = "between"  # or at the "end" of a watched body, or at the "start" of the next
    updates: int = 5

    def __str__(self) -> str:
        """What is not as simple as can be."""
        simple = Spec()
        names = [f.name for f in fields(self) if getattr(self, f.name) != getattr(simple, f.name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names) or "the simplest run"


CHOICES: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS), "optimizer": tuple(OPTIMIZERS), "split": (False, False, False, True),
    "schedule": tuple(SCHEDULES), "scaler": ("none", "none", "float16", "bfloat16"), "accumulate": (1, 1, 2, 4),
    "average": tuple(AVERAGES), "way": ("step", "watch"), "clip": (False, True), "sync": (True, True, False),
    "locate": (False, False, False, True), "fault": FAULTS, "at": (0, 1, 2, 3), "micro": (0, 1, 3),
    "turn": (0, 1), "place": PLACES, "resume": (None, None, 1, 2, 3, 4), "resume_at": ("between", "end", "start"),
    "updates": (4, 5, 6),
}  # fmt: skip


def draw(seed: int, index: int) -> Spec:
    """The trial of this number."""
    chance = random.Random(f"{seed}/{index}")
    return fitted(Spec(**{name: chance.choice(choices) for name, choices in CHOICES.items()}))


def fitted(spec: Spec) -> Spec:
    """The nearest trial that makes sense: what torch does not offer, or nobody promises, gives way."""
    for holds, change in (
        (lambda s: s.model == "sparse", {"sync": True, "clip": False, "scaler": "none"}),
        (lambda s: s.model == "sparse" and s.optimizer not in TAKE_SPARSE, {"optimizer": "momentum"}),
        (lambda s: s.model == "half", {"scaler": "none"}),
        (lambda s: s.model == "gan", {"accumulate": 1, "split": False}),
        (lambda s: not s.sync, {"way": "step"}),
        (lambda s: not s.sync and "fused" not in s.optimizer, {"optimizer": "momentum fused"}),
        # torch's own kernel leaves uninitialised memory in bfloat16 momentum, without any guard (2.13, CPU)
        (lambda s: s.model == "half" and s.optimizer == "momentum fused", {"optimizer": "adam fused"}),
        (lambda s: s.optimizer == "lbfgs" and s.model in ("gan", "half"), {"optimizer": "adam"}),
        (lambda s: s.optimizer == "lbfgs", {"accumulate": 1, "split": False, "scaler": "none"}),
        (lambda s: s.split and s.model == "registers", {"split": False}),
        (lambda s: s.average == "AveragedModel" and s.model == "registers", {"average": "hand-made"}),
        (lambda s: s.way == "step" and s.fault in ("break", "close", *CONTINUE), {"fault": "KeyError"}),
        (lambda s: s.optimizer == "lbfgs" and s.fault in CONTINUE, {"fault": "KeyError"}),
        (lambda s: s.fault == "continue" and s.place.startswith("step"), {"place": "backward"}),
        (lambda s: s.fault == "nan, continue", {"place": "forward"}),
        (lambda s: s.fault not in (*LEFT, *CONTINUE), {"place": "before"}),
        (lambda s: not s.sync and s.scaler == "float16" and s.fault in GRADIENT_FAULTS, {"scaler": "none"}),
        (lambda s: s.model != "gan" and not s.split, {"turn": 0}),
        (lambda s: s.micro >= s.accumulate, {"micro": _last}),
        (lambda s: s.place.startswith("step"), {"micro": _last}),
        (lambda s: s.at >= s.updates or (s.fault == "bad moment" and s.at == 0), {"at": 1}),
        (lambda s: s.way == "watch" and s.fault in (*LEFT, *CONTINUE), {"resume": None}),
        (lambda s: s.fault == "bad moment" or s.model == "registers", {"resume": None}),
        (lambda s: s.resume is not None and s.resume >= s.updates, {"resume": 1}),
        (lambda s: s.way == "watch" and s.resume_at == "between", {"resume_at": "end"}),
        (lambda s: s.way == "step" or s.resume is None, {"resume_at": "between"}),
        (lambda s: s.fault == "nan rate" and s.resume_at == "end", {"resume": None}),  # it is not saved
        # nor at the start of the next body: the learning rate is bad until the trial puts it right
        (
            lambda s: s.fault == "nan rate" and s.resume_at == "start" and s.resume == s.at + 1,
            {"resume": None},
        ),
        # with sync=False the schedule advances when the verdict comes, and writes over what was set by hand
        (lambda s: s.fault == "nan rate" and not s.sync, {"schedule": "none"}),
        # a plateau schedule notes the learning rates at the end of an epoch, bad ones too
        (lambda s: s.fault == "nan rate" and s.schedule == "plateau", {"schedule": "step"}),
        (lambda s: s.fault == "none", {"at": 1, "micro": 0, "turn": 0}),
    ):
        if holds(spec):
            spec = replace(spec, **{name: v(spec) if callable(v) else v for name, v in change.items()})
    return spec


def _last(spec: Spec) -> int:
    return 0 if spec.model == "gan" or spec.optimizer == "lbfgs" else spec.accumulate - 1


def batch(spec: Spec, update: int, micro: int) -> tuple[Tensor, Tensor]:
    """The same for everybody who asks."""
    generator = torch.Generator().manual_seed(1000 * update + micro)
    x = torch.randn(4, 4, generator=generator)
    w = torch.rand(4, 1, generator=generator) + 0.5
    return (torch.randint(0, 9, (4, 4), generator=generator) if spec.model in TAKES_IDS else x), w


def spoil(spec: Spec, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The bad batch. Under a scaler the loss itself must show it: a bad gradient alone is an overflow there."""
    bad = float("inf") if "inf" in spec.fault else float("nan")
    x, w = x.clone(), w.clone()
    if spec.fault != "nan in the weights" and x.is_floating_point():
        x[0, 0] = bad
    if spec.fault == "nan in the weights" or spec.model in TAKES_IDS or spec.scaler == "float16":
        w[0, 0] = bad
    return x, w
