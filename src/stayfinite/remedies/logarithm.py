"""Logarithm: log(expression) as source that never leaves log space, where there is such a form."""

from __future__ import annotations

import ast
import math

from stayfinite.remedies.inlined import inlined
from stayfinite.remedies.log_identities import is_known, log_of, log_of_one_minus
from stayfinite.remedies.log_sums import LogSums, is_one
from stayfinite.remedies.source import (
    Edit,
    SourceSite,
    argument,
    called,
    is_pure,
    needs_parentheses,
    new_name,
)

_SAME_VALUES = ("gather", "squeeze", "unsqueeze", "diagonal", "diag", "view", "reshape", "flatten", "transpose",
                "permute", "t", "index_select", "take_along_dim", "select", "narrow", "expand", "expand_as",
                "contiguous", "amax", "flip", "roll", "movedim", "swapaxes", "clone", "float", "double", "to",
                "masked_select", "repeat", "tile", "detach")  # fmt: skip
"""Ops that only choose or move values: log(x.gather(1, i)) is log(x).gather(1, i)."""


class Logarithm:
    """log(expression) as source. `of` gives None where nothing would be gained."""

    def __init__(self, site: SourceSite, at: ast.AST, kept: list[Edit], dims: int | None = None) -> None:
        """`dims`: of the exponentials, if that is known: what a matrix is multiplied by."""
        self._site, self._at, self._better = site, at, False
        self._sums = LogSums(site, self, dims)
        self._followed: set[str] = set()
        self._looks = 32  # how often a name is looked behind: what is assigned may go round in a circle
        self._impure = False
        self.kept = list(kept)  # where a value is given a name, so that it need not be computed twice

    def _inner(self, node: ast.expr) -> str:
        """An expression inside of another one, to be written a second time: a module is called only once."""
        if not self._followed or is_pure(node) or self._is_replaced(node):
            return self._site.code(node)
        if isinstance(self._site.scope(node), ast.Lambda) or self._site.scope(node) is not self._site.scope(
            self._at
        ):
            self._impure = True
            return self._site.code(node)
        known = next((edit for edit in self.kept if (edit.start, edit.end) == self._site.span(node)), None)
        if known is None:
            name = new_name(self._site, "inside", len(self.kept))
            known = Edit(*self._site.span(node), f"({name} := {self._site.code(node)})", statement=True)
            self.kept.append(known)
        return known.text[1:].partition(" ")[0]

    def _is_replaced(self, node: ast.expr) -> bool:
        """It is part of the logarithm itself, so it is not there any more once that is written otherwise."""
        (start, end), (inner, after) = self._site.span(self._at), self._site.span(node)
        return start <= inner and after <= end

    def _twice(self, node: ast.expr) -> str:
        """An inner expression that the new form has more than once."""
        text = self._inner(node)
        self._impure = self._impure or (text == self._site.code(node) and not is_pure(node))
        return self._grouped(text)

    def of(self, node: ast.expr) -> str | None:
        text = self._log(node)
        return text if self._better and not self._impure else None

    def attempt(self, node: ast.expr) -> tuple[str, bool]:
        """log(node), and whether anything was gained; where not, it is as if nobody had asked."""
        before, kept, self._better = self._better, list(self.kept), False
        text = self._log(node)
        gained, self._better = self._better, self._better or before
        if not gained:
            self.kept = kept
        return text, gained

    def of_one_plus(self, node: ast.expr) -> str | None:
        """log1p(x)."""
        text = self._sums.of_one_plus(node)
        node = self.behind(node)
        if text is None and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            text = self._one_minus(self.behind(node.operand))
        return text if self._better and not self._impure else None

    def behind(self, node: ast.expr) -> ast.expr:
        """What a name stands for."""
        while isinstance(node, ast.Name) and self._looks > 0:
            self._looks -= 1
            value = self._site.assigned(node.id, self._at)
            if value is None:
                break
            self._followed.add(node.id)
            node = value
        return node

    def _log(self, given: ast.expr) -> str:
        node = self.behind(given)
        site = self._site
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value > 0:
            return repr(math.log(node.value))
        if _is_number(node):
            return f"math.log({site.code(node)})"
        before = self._better, self._impure, list(self.kept)
        known = self._form(node)
        if known is not None:
            return known
        self._better, self._impure, self.kept = before  # what was looked at on the way is not written
        return f"{site.torch or 'torch'}.log({self._inner(given)})"

    def _form(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call):
            return self._of_call(node) or self._of_function(node)
        if isinstance(node, ast.BinOp):
            return self._of_operator(node)
        if isinstance(node, ast.Subscript):
            return self._of_the_same_values(node, node.value)
        return None

    def _of_call(self, node: ast.Call) -> str | None:
        site, name = self._site, called(node)
        inside = argument(node, site)
        if inside is None:
            return None
        if name == "softmax":
            self._better = True
            start, end = site.span(node)
            _, after = site.span(node.func)
            inner, behind = site.span(inside)
            text = self._inner(inside)
            if inner < after:  # x.softmax(-1)
                return f"{self._grouped(text)}.log_softmax{site.text[after:end]}"
            function = site.text[start : after - len("softmax")] + "log_softmax" + site.text[after:inner]
            return function + text + site.text[behind:end]
        if name == "sigmoid" and site.functional:
            self._better = True
            return f"{site.functional}.logsigmoid({self._inner(inside)})"
        if name == "exp":
            self._better = True
            text = self._inner(inside)
            return f"({text})" if needs_parentheses(text) else text
        summed = self._sums.of_call(node)
        if summed is not None:
            return summed
        if name == "prod" and argument(node, site, 1, "dim") is not None:
            self._better = True
            (start, end), (inner, behind) = site.span(node), site.span(inside)
            if inner == start:  # p.prod(dim=1)
                _, after = site.span(node.func)
                return f"{self._grouped(self._log(inside))}.sum{site.text[after:end]}"
            return f"{site.torch or 'torch'}.sum({self._log(inside)}{site.text[behind:end]}"
        if is_known(name, site):
            self._better = True
            return log_of(name, self._twice(inside), site)
        if name in _SAME_VALUES:
            return self._of_the_same_values(node, inside)
        return None

    def _of_function(self, node: ast.Call) -> str | None:
        """A function of the file that is one expression: the logarithm of that."""
        expression = inlined(node, self._site)
        if expression is None:
            return None
        imports = [one for one in self._site.tree.body if isinstance(one, (ast.Import, ast.ImportFrom))]
        text = "\n".join(ast.unparse(one) for one in [*imports, ast.Expr(expression)])
        site = SourceSite(self._site.file, text, text.count("\n") + 1)
        last = site.tree.body[-1]
        assert isinstance(last, ast.Expr)
        inner = Logarithm(site, last.value, [])
        made = inner.of(last.value)
        self._better = self._better or made is not None
        return made

    def _of_the_same_values(self, node: ast.Call | ast.Subscript, inside: ast.expr) -> str | None:
        """The logarithm of all values, of which the same ones are chosen."""
        site = self._site
        others = [one for one in ast.iter_child_nodes(node) if one is not inside]
        if isinstance(node, ast.Call):
            others = [*node.args, *node.keywords]
        if not all(is_pure(one) for one in others if one is not inside):
            return None
        text, gained = self.attempt(inside)
        if not gained:
            return None
        (start, end), (inner, behind) = site.span(node), site.span(inside)
        return f"{site.text[start:inner]}{self._grouped(text)}{site.text[behind:end]}"

    def _of_operator(self, node: ast.BinOp) -> str | None:
        if isinstance(node.op, ast.Mult):
            return f"{self._log(node.left)} + {self._grouped(self._log(node.right))}"
        if isinstance(node.op, ast.Div):
            return f"{self._log(node.left)} - {self._grouped(self._log(node.right))}"
        if isinstance(node.op, ast.Pow):
            return f"{self._site.term(node.right)} * {self._grouped(self._log(node.left))}"
        if isinstance(node.op, ast.MatMult):
            return self._sums.of_product(node.left, node.right)
        if isinstance(node.op, ast.Add):
            return self._sums.of_two(node.left, node.right)
        if isinstance(node.op, ast.Sub) and is_one(node.left):
            return self._one_minus(self.behind(node.right))
        if isinstance(node.op, ast.Sub):
            between = self._of_difference(self.behind(node.left), self.behind(node.right))
            return between or self._sums.of_difference(node.left, node.right)
        return None

    def _of_difference(self, left: ast.expr, right: ast.expr) -> str | None:
        """sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a))."""
        inner = [
            argument(one, self._site)
            for one in (left, right)
            if isinstance(one, ast.Call) and called(one) == "sigmoid"
        ]
        site = self._site
        if len(inner) != 2 or inner[0] is None or inner[1] is None or not site.functional or not site.torch:
            return None
        self._better = True
        a, b = (self._twice(one) for one in inner if one is not None)
        logs = f"{site.functional}.logsigmoid({a}) + {site.functional}.logsigmoid(-{b})"
        return f"{logs} + {site.torch}.log(-{site.torch}.expm1({b} - {a}))"

    def _one_minus(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call) and called(node) == "sigmoid" and self._site.functional:
            inside = argument(node, self._site)
            if inside is not None:
                self._better = True
                return f"{self._site.functional}.logsigmoid(-{self._grouped(self._inner(inside))})"
        known = log_of_one_minus(node, self._site, self.behind)
        if known is not None:
            self._better = True
            return known[1](self._twice(known[0]))
        return None

    def _grouped(self, text: str) -> str:
        return f"({text})" if needs_parentheses(text) else text


def _is_number(node: ast.expr) -> bool:
    """math.sqrt(2 * math.pi): no tensor is in it."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names == {"math"}
