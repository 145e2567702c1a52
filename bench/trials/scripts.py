"""Random training scripts as people write them: what a trial of `stayfinite run` is drawn from, and their source."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from textwrap import indent

UPDATES = 12
BATCHES = 4  # of an epoch


@dataclass(frozen=True)
class Script:
    """One entry of each table; the first of each is the simplest."""

    model: str = "mlp"
    optimizer: str = "sgd"
    loop: str = "for batches"
    call: str = "step()"
    schedule: str = "none"
    clip: str = "none"
    zero: str = "before"
    accumulate: int = 1
    average: str = "none"
    scaler: str = "none"
    fault: str = "none"
    at: tuple[int, ...] = ()  # updates whose batch is bad
    seed: int = 0


MODELS = {
    "mlp": "nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))",
    "batch norm": "nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))",
    "dropout": "nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 1))",
    "recurrent": "Recurrent()",
    "spectral norm": (
        "nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 1))"
    ),
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD({of}, lr=0.05)",
    "momentum": "torch.optim.SGD({of}, lr=0.05, momentum=0.9, nesterov=True)",
    "adam": "torch.optim.Adam({of}, lr=0.01)",
    "adamw fused": "torch.optim.AdamW({of}, lr=0.01, fused=True)",
    "momentum fused": "torch.optim.SGD({of}, lr=0.05, momentum=0.9, fused=True)",
    "rmsprop": "torch.optim.RMSprop({of}, lr=0.01, centered=True)",
    "adagrad": "torch.optim.Adagrad({of}, lr=0.05)",
    "own": "Signed({of}, lr=0.01)",
    "lbfgs": "torch.optim.LBFGS({of}, lr=0.1, max_iter=4)",
    "two groups": "torch.optim.Adam([{{'params': list({of})[:1], 'lr': 0.02}}, {{'params': list({of})[1:]}}], lr=0.01)",
}
WITH_MOMENTUM = ("momentum", "momentum fused", "adam", "adamw fused")  # what OneCycleLR wants
LOOPS = ("for batches", "loader", "loader, epochs", "while", "function", "enumerate", "next")
CALLS = ("step()", "step(closure)", "bound", "two optimizers", "gan", "over batches")
SCHEDULES = {
    "none": "",
    "step": "torch.optim.lr_scheduler.StepLR({of}, 3, gamma=0.5)",
    "cosine": "torch.optim.lr_scheduler.CosineAnnealingLR({of}, 20)",
    "one cycle": "torch.optim.lr_scheduler.OneCycleLR({of}, 0.1, total_steps=40)",
    "lambda": "torch.optim.lr_scheduler.LambdaLR({of}, lambda n: 1 / (n + 1))",
    "by hand": "",
    "epoch": "torch.optim.lr_scheduler.ExponentialLR({of}, 0.5)",
}
CLIPS = {
    "none": "",
    "norm": "torch.nn.utils.clip_grad_norm_({of}, 0.5)",
    "value": "torch.nn.utils.clip_grad_value_({of}, 0.5)",
}
ZEROS = ("before", "after", "in place")
AVERAGES = ("none", "averaged model", "deep copy")
FAULTS = ("none", "nan batch", "inf batch", "nan gradient", "nan loss", "all bad")
SCALERS = ("none", "scaler")

_HEAD = """
import copy, itertools, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed({seed})
BAD, SKIP = {bad}, {skip}

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 1)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.seen += x.abs().mean()
        return self.head(self.cell(x.view(-1, 2, 2))[0][:, -1])

class Signed(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    held = self.state[p].setdefault("held", torch.zeros_like(p))
                    held.mul_(0.9).add_(p.grad)
                    p.add_(held.sign(), alpha=-group["lr"])
        return loss

xs, ys = torch.randn({count}, 4), torch.randn({count}, 1)
model = {model}
other = {other}
opt = {optimizer}
opt2 = {optimizer2}
scheduler = {schedule}
average = {average}
scaler = {scaler}
accumulate = {accumulate}

def loss_of(net, x, y, update):
    if update in BAD and FAULT in ("nan batch", "all bad"):
        x = x.clone(); x[0, 0] = float("nan")
    if update in BAD and FAULT == "inf batch":
        x = x.clone(); x[-1, 1] = float("inf")
    loss = nn.functional.mse_loss(net(x), y)
    if update in BAD and FAULT == "nan loss":
        loss = loss * torch.tensor(float("nan"))
    if update in BAD and FAULT == "nan gradient":
        loss = loss + 0 * (net(x) * 0).abs().sqrt().sum()
    return loss / accumulate

def batches():
    for start in range(0, len(xs), 4):
        yield xs[start:start + 4], ys[start:start + 4]
"""

_STEP = {
    "step()": """
{zero_before}
{backward}
{clip}
{step}
{zero_after}
""",
    "step(closure)": """
def closure():
    opt.zero_grad()
    value = loss_of(model, x, y, update)
    value.backward()
    return value
opt.step(closure)
""",
    "bound": """
take = opt.step
{zero_before}
{backward}
{clip}
take()
{zero_after}
""",
    "two optimizers": """
opt.zero_grad(); opt2.zero_grad()
loss = loss_of(model, x, y, update) + loss_of(other, x, y, update)
loss.backward()
opt.step()
opt2.step()
""",
    "gan": """
opt2.zero_grad()
loss_of(other, model(x).detach().expand(-1, 4), y, update).backward()
opt2.step()
opt.zero_grad()
loss = loss_of(other, model(x).expand(-1, 4), y, update)
loss.backward()
opt.step()
""",
}

_OVER_BATCHES = """
{first}
unit = update // 2
if unit in SKIP:
    {leave}
(loss_of(model, x, y, unit) / 2).backward()
if update % 2 == 1:
{update}
    opt.zero_grad()
"""  # one update of every two batches

_TAIL = """
bits = {"model": model.state_dict(), "other": other.state_dict(), "opt": opt.state_dict(), "opt2": opt2.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else {},
        "average": average.state_dict() if average is not None else {},
        "scaler": scaler.state_dict() if scaler is not None else {}, "random": torch.get_rng_state()}
for state in (bits["scheduler"],):
    for key in [k for k, v in state.items() if callable(v) or k == "lr_lambdas"]:
        del state[key]
torch.save(bits, sys.argv[1])
"""


def draw(random_numbers: random.Random) -> Script:
    """A script whose parts go together."""
    r = random_numbers
    fault = r.choice(FAULTS)
    count = 2 if fault == "all bad" else r.choice((1, 1, 2))
    call = r.choice(CALLS)
    optimizer = r.choice(tuple(OPTIMIZERS))
    if optimizer == "lbfgs":
        call = "step(closure)"
    updates = range(UPDATES // 2 if call == "over batches" else UPDATES)
    at = tuple(sorted(r.sample(updates, count))) if fault != "none" else ()
    schedule = r.choice(tuple(SCHEDULES))
    if schedule == "one cycle" and optimizer not in WITH_MOMENTUM:
        schedule = "cosine"  # the other wants momentum
    plain = call in ("step()", "bound", "over batches") and optimizer != "lbfgs"
    scaler = r.choice(SCALERS) if call == "step()" else "none"
    return Script(
        model=r.choice(tuple(MODELS)),
        optimizer=optimizer,
        loop=r.choice(LOOPS),
        call=call,
        schedule=schedule,
        clip=r.choice(tuple(CLIPS)) if plain else "none",
        zero=r.choice(ZEROS) if plain and call != "over batches" else "before",
        accumulate=r.choice((1, 1, 2, 3)) if call == "step()" else 1,
        average=r.choice(AVERAGES),
        scaler=scaler,
        fault=fault,
        at=at,
        seed=r.randrange(1000),
    )


def source(script: Script, *, without: bool) -> str:
    """The script; `without`: it passes over the bad batches instead of training on them."""
    of = "model.parameters()"
    head = _HEAD.format(
        seed=script.seed,
        bad=set() if without else set(script.at),
        skip=set(script.at) if without else set(),
        count=BATCHES * 4,
        model=MODELS[script.model],
        other=MODELS["batch norm"],
        optimizer=OPTIMIZERS[script.optimizer].format(of=of),
        optimizer2=OPTIMIZERS["momentum"].format(of="other.parameters()"),
        schedule=SCHEDULES[script.schedule].format(of="opt") or None,
        average={
            "none": None,
            "averaged model": "torch.optim.swa_utils.AveragedModel(model)",
            "deep copy": "copy.deepcopy(model).requires_grad_(False)",
        }[script.average],
        scaler="torch.amp.GradScaler('cpu', init_scale=1024.0)" if script.scaler != "none" else None,
        accumulate=script.accumulate,
    )
    return f"FAULT = {script.fault!r}\n" + head + _loop(script, _body(script)) + _TAIL


def _body(script: Script) -> str:
    of = "model.parameters()"
    scaled = script.scaler != "none"
    backward = (
        "loss = loss_of(model, x, y, update)\n" + ("scaler.scale(loss)" if scaled else "loss") + ".backward()"
    )
    clip = CLIPS[script.clip].format(of=of)
    if clip and scaled:
        clip = f"scaler.unscale_(opt)\n{clip}"
    step = "scaler.step(opt); scaler.update()" if scaled else "opt.step()"
    if script.call == "over batches":
        body = f"{clip}\n{step}\n"
    elif script.accumulate > 1:
        zero = "opt.zero_grad()"
        body = f"{zero}\nfor micro in range(accumulate):\n{indent(backward, '    ')}\n{clip}\n{step}\n"
    else:
        body = _STEP[script.call].format(
            zero_before={"before": "opt.zero_grad()", "in place": "opt.zero_grad(set_to_none=False)"}.get(
                script.zero, ""
            ),
            zero_after="opt.zero_grad()" if script.zero == "after" else "",
            backward=backward,
            clip=clip,
            step=step,
        )
    first = {
        "by hand": "for group in opt.param_groups:\n    group['lr'] = 0.05 / (update + 1)\n",
        "epoch": f"if update and update % {BATCHES} == 0:\n    scheduler.step()\n",
    }.get(script.schedule, "")
    if script.schedule != "none" and not first:
        body += "scheduler.step()\n"
    body += {
        "none": "",
        "averaged model": "average.update_parameters(model)\n",
        "deep copy": (
            "with torch.no_grad():\n    for a, p in zip(average.parameters(), model.parameters()):\n"
            "        a.lerp_(p, 0.1)\n"
        ),
    }[script.average]
    if script.call == "over batches":
        return _OVER_BATCHES.replace("{first}", first).replace("{update}", indent(body, "    "))
    return first + "if update in SKIP:\n    {leave}\n" + body


def _loop(script: Script, body: str) -> str:
    def filled(leave: str) -> str:
        return indent(body.replace("{leave}", leave), "    ")

    count, batch = f"range({UPDATES})", f"list(batches())[update % {BATCHES}]"
    if script.loop == "for batches":
        return f"\nfor update in {count}:\n    x, y = {batch}\n" + filled("continue")
    if script.loop == "while":
        begin = f"\nupdate = -1\nwhile update < {UPDATES - 1}:\n    update += 1\n    x, y = {batch}\n"
        return begin + filled("continue")
    if script.loop == "function":
        calls = f"\nfor update in {count}:\n    train_step(*{batch}, update)\n"
        return "\ndef train_step(x, y, update):\n" + filled("return") + calls
    loader = "DataLoader(TensorDataset(xs, ys), batch_size=4, shuffle=True)"
    if script.loop == "loader":
        return (
            f"\nloader = {loader}\nupdate = -1\nfor epoch in range(3):\n    for x, y in loader:\n        update += 1\n"
            + indent(filled("continue"), "    ")
        )
    if script.loop == "next":
        return (
            f"\nloader = {loader}\nfeed = iter(loader)\nfor update in {count}:\n    try:\n        x, y = next(feed)\n"
            "    except StopIteration:\n        feed = iter(loader)\n        x, y = next(feed)\n"
            + filled("continue")
        )
    if script.loop == "enumerate":
        return (
            f"\nloader = {loader}\nfor epoch in range(3):\n    for i, (x, y) in enumerate(loader):\n"
            f"        update = epoch * {BATCHES} + i\n" + indent(filled("continue"), "    ")
        )
    return (
        f"\nloader = {loader}\n\ndef train(epoch):\n    model.train()\n    for i, (x, y) in enumerate(loader):\n"
        f"        update = epoch * {BATCHES} + i\n"
        + indent(filled("continue"), "    ")
        + "\n\nfor epoch in range(3):\n    train(epoch)\n    model.eval()\n    with torch.no_grad():\n"
        "        model(xs)\n    model.train()\n"
    )


def simpler(script: Script) -> list[Script]:
    """The same with one dimension at its simplest."""
    simplest, kept = Script(), ("fault", "at", "seed")
    changes = [
        replace(script, **{field.name: getattr(simplest, field.name)})
        for field in fields(script)
        if field.name not in kept and getattr(script, field.name) != getattr(simplest, field.name)
    ]
    return [
        change
        for change in changes
        if (change.optimizer != "lbfgs" or change.call == "step(closure)")
        and (change.schedule != "one cycle" or change.optimizer in WITH_MOMENTUM)
    ]
