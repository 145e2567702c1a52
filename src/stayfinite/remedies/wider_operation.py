"""WiderOperation: one operation in a wider dtype, as an edit of its expression or around the call."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import ClassVar, Final

from stayfinite.findings.mechanism.operands import LARGEST
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, SourceSite, called, is_method
from stayfinite.remedies.wider_calls import Back, Place, wider_calls

_OF_TWO: Final = frozenset({"matmul", "mm", "bmm", "dot", "mv", "outer", "inner", "mul", "multiply", "add", "sub",
                            "subtract", "div", "divide", "true_divide", "pow", "cdist", "mse_loss", "l1_loss",
                            "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
                            "binary_cross_entropy_with_logits", "cosine_similarity", "pairwise_distance"})  # fmt: skip
_MANY: Final = ("einsum", "bilinear")
_UNKNOWN: Final = ("linear", "conv1d", "conv2d", "conv3d", "convolution", "batch_norm", "native_batch_norm", "addmm",
                   "baddbmm", "scaled_dot_product_attention")  # fmt: skip
_WITH_WEIGHTS: Final = ("weight", "bias", "running_mean", "running_var", "attn_mask")


class WiderOperation(Remedy):
    """`dtype` is what is computed in, `method` what a tensor's cast to it is called."""

    dtype: ClassVar[str]
    method: ClassVar[str]
    only_wider = True
    universal = True  # where anything is too large, more room may help
    _around: tuple[Place, Back] | None = None  # of one that was bound to a place

    def ways(self, case: Case) -> Iterator[Prescription]:
        """As one would write it; then around the call itself, where the dtypes of all its inputs are seen."""
        if not self.can_act(case):
            return
        site = case.site
        if site is not None:
            for edits in self._written(case, site):
                yield Prescription(self, site.file, edits)
        birth = case.birth.birth
        if birth.file is not None and birth.line is not None:
            names = tuple(dict.fromkeys((case.call, case.op)))
            place = Place(birth.file, birth.line, names)
            yield Prescription(self._bound(place, "in range"))
            yield Prescription(self._bound(place, "always"))

    def can_act(self, case: Case) -> bool:
        """Something is narrower than what would be computed in."""
        dtypes = (case.birth.dtype, *(operand.dtype for operand in case.birth.operands))
        return any(LARGEST.get(dtype, math.inf) < LARGEST[self.dtype] for dtype in dtypes)

    def applied(self) -> AbstractContextManager[None] | None:
        return wider_calls(self._around[0], self.dtype, self._around[1]) if self._around is not None else None

    def _bound(self, place: Place, back: Back) -> WiderOperation:
        made = type(self)()
        made._around = place, back
        return made

    def _fits_back(self, case: Case) -> bool:
        """Whether the result is in the range of the dtype that it would have had, as far as that was measured."""
        known, limit = case.birth.float32, LARGEST.get(case.birth.dtype)
        return known is None or known.absmax is None or limit is None or known.absmax <= limit

    # -- in the source -----------------------------------------------------------------------------------

    def _written(self, case: Case, site: SourceSite) -> Iterator[tuple[Edit, ...]]:
        """The result stays wide under autocast, which casts what follows. Else it goes back at once, if half can hold
        it, or at the end of its statement; and last, it stays wide for what follows to cope with."""
        found: list[tuple[ast.expr, str]] = []
        for name in case.names:
            found = [
                (node, text)
                for node in site.operations(name)
                if (text := self._widened(node, site)) is not None
            ]
            if found:
                break
        if not found:
            return
        if case.birth.autocast is None and case.in_half:
            if self._fits_back(case):
                yield tuple(site.replace(node, _narrowed(text, node, case)) for node, text in found)
            elif (whole := _narrowed_statement(found, case)) is not None:
                yield (whole,)
        yield tuple(site.replace(node, text) for node, text in found)

    def _widened(self, node: ast.expr, site: SourceSite) -> str | None:
        if isinstance(node, ast.BinOp):
            left, right = (self._cast(side, site) for side in (node.left, node.right))
            start, end = site.span(node.left)[1], site.span(node.right)[0]
            between = site.text[start:end].replace(")", "").replace("(", "")
            return f"{left}{between}{right}"
        if not isinstance(node, ast.Call):
            return None
        tensors = _tensors(node, site)
        if not tensors:
            return None
        text = site.code(node)
        start, _ = site.span(node)
        for given in sorted(tensors, key=site.span, reverse=True):
            inner, after = site.span(given)
            text = text[: inner - start] + self._cast(given, site) + text[after - start :]
        return text

    def _cast(self, node: ast.expr, site: SourceSite) -> str:
        return site.term(node) + ("" if isinstance(node, ast.Constant) else f".{self.method}()")


def _narrowed(text: str, node: ast.expr, case: Case) -> str:
    """In the dtype of the first tensor, as it was before."""
    return (
        f"({text}).to({_dtype(node, case)})"
        if isinstance(node, ast.BinOp)
        else f"{text}.to({_dtype(node, case)})"
    )


def _dtype(node: ast.expr, case: Case) -> str:
    site = case.site
    assert site is not None
    tensors = [node.left, node.right] if isinstance(node, ast.BinOp) else _tensors(node, site)
    first = next((one for one in tensors if isinstance(one, (ast.Name, ast.Attribute))), None)
    return f"{site.term(first)}.dtype" if first is not None else f"{site.torch}.{case.birth.dtype}"


def _narrowed_statement(found: list[tuple[ast.expr, str]], case: Case) -> Edit | None:
    """h = f(wide op) -> h = f(wide op).to(h.dtype): for a result that is small again by the end of its line."""
    site = case.site
    assert site is not None
    node, text = found[0]
    statement = site.statement(node)
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) else None
    if value is None or value is node or len(found) != 1:
        return None
    start, end = site.span(value)
    inner, after = site.span(node)
    outer = site.text[start:inner] + f"({text})" + site.text[after:end]
    return site.replace(value, f"({outer}).to({_dtype(node, case)})")


def _tensors(node: ast.expr, site: SourceSite) -> list[ast.expr]:
    """The tensors among the arguments of a call, as far as its name says; none where that is not known.

    None of an op that writes into its tensor either: what it wrote into a copy would be lost.
    """
    if not isinstance(node, ast.Call):
        return []
    name = called(node)
    given: list[ast.expr] = list(node.args)
    if is_method(node, site) and isinstance(node.func, ast.Attribute):
        given.insert(0, node.func.value)
    keywords = {k.arg for k in node.keywords}
    if (
        not given
        or any(isinstance(one, ast.Starred) for one in given)
        or name in _UNKNOWN
        or name.endswith("_")
    ):
        return []
    if keywords & {*_WITH_WEIGHTS, "out"}:
        return []
    if name in _MANY:
        return [one for one in given if not isinstance(one, ast.Constant)]
    count = 2 if name in _OF_TWO else 1
    return [one for one in given[:count] if not isinstance(one, ast.Constant)]
