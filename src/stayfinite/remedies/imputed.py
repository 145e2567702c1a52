"""Bad values that came in are replaced where they enter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stayfinite.findings.incident import listed_samples
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, SourceSite, called

_MAKERS = ("tensor", "as_tensor", "from_numpy", "asarray", "frombuffer", "stack")
"""What makes a tensor of values that torch has not computed. The op behind some of them has no name of theirs."""

_MUCH = 0.25  # of what came in

_WITH_WEIGHTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mv", "einsum", "convolution", "embedding", "lstm", "gru",
     "native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm_legit", "mkldnn_linear")
)  # fmt: skip


class Imputed(Remedy):
    """nan_to_num(x, nan=0, posinf=0, neginf=0) where x enters: every finite value stays."""

    name = "imputed"
    sentence = "replace NaN and Inf by 0 where they come in, before anything is computed with them"
    kinds = frozenset({Kind.CAME_IN, Kind.HIDDEN, Kind.ZERO_TIMES_INF, Kind.CONSTANT_COLUMN})
    rank = 3
    universal = True

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.birth.transition in (
            "deliberate",
            "outside",
            "inf->nan",
        )

    def leaves(self, case: Case) -> str | None:
        """A bad value in some samples is one thing, a column that is bad in all of them another."""
        if case.kind in (Kind.CAME_IN, Kind.CONSTANT_COLUMN) and case.birth.fact("bad_columns"):
            return "finite, but a column that was NaN in every sample is 0 in every sample: what makes it so stays"
        if case.kind is Kind.CAME_IN and (lost := _nothing_left(case)):
            return f"finite, but {lost}: they would be learnt as 0"
        if case.kind is Kind.CAME_IN and _is_label(case):
            return "finite, but it goes to the loss as it is: what nobody knows would be learnt as 0"
        return None

    def ways(self, case: Case) -> Iterator[Prescription]:
        """Where they enter in the source; else, or where more of them enter elsewhere, where modules are given data."""
        yield from (way for way in super().ways(case) if way.edits)
        if case.kind is Kind.CAME_IN:
            yield Prescription(self)

    def applied(self) -> AbstractContextManager[None]:
        return _imputed_for_modules()

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if not site.torch:
            return []
        for name in (*case.names, *(_MAKERS if case.op == "lift_fresh" else ())):
            nodes = site.operations(name)
            if nodes:
                return [site.replace(n, _finite(site, site.code(n))) for n in nodes]
        return _where_the_loop_takes_it(case, site)


def _nothing_left(case: Case) -> str:
    """What came in bad throughout: samples, or so much of the data that what spread it must be mended."""
    shown, of_batch = case.birth.birth, [held for held in case.step.batch if not held.finite]
    bad = shown.nan + shown.inf
    if shown.numel > 1 and bad >= _MUCH * shown.numel:
        return f"{bad} of {shown.numel} values were bad"
    for held in of_batch:
        a_sample = held.numel // held.summary.shape[0] if held.summary.shape else 0
        lost = a_sample > 1 and held.summary.nan + held.summary.inf >= len(held.samples) * a_sample
        if held.samples and lost:
            return f"nothing of samples {listed_samples(held.samples, 5)} is known"
    return ""


def _is_label(case: Case) -> bool:
    """Data that goes to the loss, and nothing with weights is made of it on its way."""
    ops = {one.op.removeprefix("aten.").partition(".")[0] for one in case.step.path}
    of_data = case.how.word == "outside" or any(not held.finite for held in case.step.batch)
    return bool(ops) and of_data and ops.isdisjoint(_WITH_WEIGHTS)


@contextmanager
def _imputed_for_modules() -> Iterator[None]:
    """Tensors that nothing learnt has computed are made finite when a module is called with them."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    def finite(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.requires_grad:
            return value
        return torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)

    def look(module: Any, given: tuple[Any, ...]) -> Any:
        return tuple(finite(one) for one in given)

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _finite(site: SourceSite, value: str) -> str:
    return f"{site.torch}.nan_to_num({value}, nan=0.0, posinf=0.0, neginf=0.0)"


def _where_the_loop_takes_it(case: Case, site: SourceSite) -> list[Edit]:
    """At the head of the loop that trains: of the part of the batch that holds the bad values."""
    bad = [place for place, held in enumerate(case.step.batch) if not held.finite]
    for loop in ast.walk(site.tree):
        if not isinstance(loop, ast.For) or not _trains(loop) or loop.body[0].lineno == loop.lineno:
            continue
        parts = _parts(loop)
        if bad and len(case.step.batch) <= len(parts):
            first = loop.body[0]
            start, indent = site.span(first)[0], " " * first.col_offset
            lines = [f"{name} = {_finite(site, name)}\n{indent}" for name in (parts[place] for place in bad)]
            return [Edit(start, start, "".join(lines), statement=True)]
    return []


def _trains(loop: ast.For) -> bool:
    """The innermost loop around a backward pass."""
    inner = [node for stmt in loop.body for node in ast.walk(stmt)]
    return any(isinstance(n, ast.Call) and called(n) == "backward" for n in inner) and not any(
        isinstance(n, ast.For) and _trains(n) for n in inner
    )


def _parts(loop: ast.For) -> list[str]:
    """The names that a loop gives to the parts of its batch, in order; none if it takes it as a whole of several."""
    target = loop.target
    counted = isinstance(loop.iter, ast.Call) and called(loop.iter) == "enumerate"
    if counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    nodes = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return names if len(names) == len(nodes) else []
