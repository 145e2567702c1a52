"""What the names in logs mean: which series is the loss, the gradient norm, the learning rate, the step."""

from __future__ import annotations

import re

from stayfinite.findings.subjects.log import CORE, Role

STEP_NAMES = ("global_step", "trainer/global_step", "step", "_step", "iteration", "iter", "global_steps", "num_updates",
              "update", "updates", "steps", "it", "n_iter", "current_steps", "batch", "epoch")  # fmt: skip
"""The first that a record has counts its steps."""

_IGNORED = re.compile(
    r"^(_?(step|runtime|timestamp|time|wall_time|seconds|elapsed|eta)|epoch|iter|iteration|global_step|.*_runtime|total_flos"
    r"|.*(samples|steps|tokens|it|batches)_?(per|/)_?(second|sec|s)|seed|rank|world_size|batch|max_steps|num_train_epochs)$"
)
_EVALUATION = re.compile(r"(^|[/._\- ])(val|valid|validation|eval|evaluation|test|dev)([/._\- ]|$)")
_RATES = re.compile(
    r"(^|[/._\- ])(lr|learning_?rate|lrate)([/._\- ]?(\d+|abs|pg\d+|group_?\d*|param_groups?\d*))*$|^lr([-_/.].*)?$"
)
_NORM = re.compile(
    r"(^|[/._\- ])(grad(ient)?s?_?norm(_?\w*)?|gnorm|grad_?2?_norm(_total)?|norm_grad|total_norm|grad_norm.*)$"
    r"|^(train/)?norm$"
)
_SCALE = re.compile(r"(^|[/._\- ])(loss_?scale|grad_?scale|scaler?|amp_?scale|scaler_scale)$")
_UPDATE = re.compile(r"(^|[/._\- ])(update_?(ratio|norm|rms)|upd_?norm|ratio_update)$")
_SKIPPED = re.compile(
    r"(^|[/._\- ])(skip|skips|skipped|skipped_(steps|iterations|batches)|num_skipped|overflows?"
    r"|nan_(batches|steps|skips))$"
)
_SUCCESS = re.compile(r"(^|[/._\- ])(success_?rate|applied_?(rate|share)?|success)$")
_LOSS = re.compile(
    r"(^|[/._\- ])(loss|nll|ce|cross_?entropy|elbo|objective|mse|l1|bce|kl|kd)([/._\- ]|$)|loss(es)?(_\w+)?$|_loss(_|$)"
)
_MAIN = re.compile(
    r"^(train(ing)?[/._\- ])?((total|mean|avg|running)[/._\- ]?)?(train(ing)?[/._\- ]?)?"
    r"loss([/._\- ](step|epoch|total|avg|mean|train(ing)?|batch))*$"
)
_SMOOTHED = re.compile(r"(weight|coef|scale|lambda|_w|count|ratio|accuracy|acc)$")


def role_of(name: str) -> Role:
    """The role a name gives a series; METRIC where it does not tell."""
    low = name.lower()
    if _RATES.search(low):
        return Role.RATE
    if _NORM.search(low):
        return Role.NORM
    if _SCALE.search(low):
        return Role.SCALE
    if _UPDATE.search(low):
        return Role.UPDATE
    if _SKIPPED.search(low):
        return Role.SKIPPED
    if _SUCCESS.search(low):
        return Role.SUCCESS
    if _LOSS.search(low) and not _SMOOTHED.search(low):
        if _EVALUATION.search(low):
            return Role.EVALUATION
        return Role.LOSS if _MAIN.match(low) else Role.COMPONENT
    return Role.METRIC


def ignored(name: str) -> bool:
    """Clocks and counters: numbers that say nothing about the training's health."""
    return _IGNORED.match(name.lower()) is not None


_known: dict[str, bool] = {}


def core(name: str) -> bool:
    """Whether every value of this series is looked at."""
    found = _known.get(name)
    if found is None:
        if len(_known) > 10_000:  # a log may invent a name in every line
            _known.clear()
        role = role_of(name)
        found = _known[name] = not ignored(name) and (role in CORE or role in (Role.SKIPPED, Role.SUCCESS))
    return found
