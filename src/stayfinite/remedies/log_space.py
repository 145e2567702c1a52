"""The logarithm computed from what is inside of it: log(softmax), log(sum(exp)), log(1 + exp)."""

from __future__ import annotations

import ast
import math

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.inlined import inlined
from stayfinite.remedies.log_identities import is_known, log_of, log_of_one_minus
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_pure, new_name

_LARGEST_EPS = 1e-4
_LOGS = ("log", "log1p")
_SAME_VALUES = ("gather", "squeeze", "unsqueeze", "diagonal", "diag", "view", "reshape", "flatten", "transpose",
                "permute", "t", "index_select", "take_along_dim", "select", "narrow", "expand",
                "contiguous", "amax")  # fmt: skip
"""Ops that only choose or move values: log(x.gather(1, i)) is log(x).gather(1, i)."""
_SUMS = {"sum": "logsumexp", "cumsum": "logcumsumexp"}


class LogSpace(Remedy):
    """log of a product, a sum of exponentials, a softmax or a sigmoid, without leaving log space."""

    name = "log-space"
    sentence = "compute the logarithm in log space, from what is inside of it"
    kinds = frozenset({
        Kind.LOG_OF_ZERO, Kind.LOG_OF_NEGATIVE, Kind.EPS_VANISHED, Kind.RATIO_INTO_LOG, Kind.EXP_OVERFLOW,
        Kind.EXP_UNDERFLOW, Kind.HALF_OVERFLOW, Kind.ZERO_TIMES_INF, Kind.SCALE_NOT_POSITIVE,
    })  # fmt: skip
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        lines = {site.line, *(s.line for s in case.step.path if s.line is not None and s.file == site.file)}
        found: list[Edit] = []
        kept: list[Edit] = []
        for line in sorted(lines) if case.op not in _LOGS else [site.line]:
            for node in site.calls(*_LOGS, line=line):
                inside = argument(node, site)
                if inside is None:
                    continue
                logarithm = _Logarithm(site, node, kept)
                made = logarithm.of(inside) if called(node) == "log" else logarithm.of_one_plus(inside)
                if made is not None:
                    found.append(site.replace(node, f"({made})" if _needs_parentheses(made) else made))
                    kept = logarithm.kept
        return [*found, *kept] if found else []


def _needs_parentheses(text: str) -> bool:
    return not isinstance(
        ast.parse(text, mode="eval").body, (ast.Call, ast.Name, ast.Attribute, ast.Subscript)
    )


class _Logarithm:
    """log(expression) as source. `of` gives None where nothing would be gained."""

    def __init__(self, site: SourceSite, at: ast.AST, kept: list[Edit]) -> None:
        self._site, self._at, self._better = site, at, False
        self._followed: set[str] = set()
        self._looks = 32  # how often a name is looked behind: what is assigned may go round in a circle
        self._impure = False
        self.kept = list(kept)  # where a value is given a name, so that it need not be computed twice

    def _inner(self, node: ast.expr) -> str:
        """An expression inside of another one, to be written a second time: a module is called only once."""
        if not self._followed or is_pure(node):
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

    def _twice(self, node: ast.expr) -> str:
        """An inner expression that the new form has more than once."""
        text = self._inner(node)
        self._impure = self._impure or (text == self._site.code(node) and not is_pure(node))
        return self._grouped(text)

    def of(self, node: ast.expr) -> str | None:
        text = self._log(node)
        return text if self._better and not self._impure else None

    def of_one_plus(self, node: ast.expr) -> str | None:
        """log1p(x)."""
        node = self._behind(node)
        text = self._one_plus(node)
        if text is None and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            text = self._one_minus(self._behind(node.operand))
        return text if self._better and not self._impure else None

    def _behind(self, node: ast.expr) -> ast.expr:
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
        node = self._behind(given)
        site = self._site
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value > 0:
            return repr(math.log(node.value))
        if _is_number(node):
            return f"math.log({site.code(node)})"
        if isinstance(node, ast.Call):
            known = self._of_call(node) or self._of_function(node)
            if known is not None:
                return known
        if isinstance(node, ast.BinOp):
            known = self._of_operator(node)
            if known is not None:
                return known
        if isinstance(node, ast.Subscript):
            known = self._of_the_same_values(node, node.value)
            if known is not None:
                return known
        return f"{site.torch or 'torch'}.log({self._inner(given)})"

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
            return f"({text})" if _needs_parentheses(text) else text
        if name in _SUMS and site.torch:
            return self._of_sum(node, inside, _SUMS[name])
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
        inner = _Logarithm(site, last.value, [])
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
        before, self._better = self._better, False
        text = self._log(inside)
        gained, self._better = self._better, self._better or before
        if not gained:
            return None
        (start, end), (inner, behind) = site.span(node), site.span(inside)
        return f"{site.text[start:inner]}{self._grouped(text)}{site.text[behind:end]}"

    def _of_sum(self, node: ast.Call, inside: ast.expr, function: str) -> str | None:
        site = self._site
        dim = argument(node, site, 1, "dim")
        before, self._better = self._better, False
        text = self._log(inside)
        gained, self._better = self._better, self._better or before
        if dim is None or not gained:
            self._better = before
            return None
        more = "".join(f", {site.code(k.value) if k.arg is None else f'{k.arg}={site.code(k.value)}'}"
                       for k in node.keywords if k.arg not in ("dim", "input"))  # fmt: skip
        return f"{site.torch}.{function}({text}, {site.code(dim)}{more})"

    def _of_operator(self, node: ast.BinOp) -> str | None:
        if isinstance(node.op, ast.Mult):
            return f"{self._log(node.left)} + {self._grouped(self._log(node.right))}"
        if isinstance(node.op, ast.Div):
            return f"{self._log(node.left)} - {self._grouped(self._log(node.right))}"
        if isinstance(node.op, ast.Pow):
            return f"{self._site.term(node.right)} * {self._grouped(self._log(node.left))}"
        if isinstance(node.op, ast.Add):
            return self._of_sum_of_two(node)
        if isinstance(node.op, ast.Sub) and _is_one(node.left):
            return self._one_minus(self._behind(node.right))
        if isinstance(node.op, ast.Sub):
            return self._of_difference(self._behind(node.left), self._behind(node.right))
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

    def _of_sum_of_two(self, node: ast.BinOp) -> str | None:
        for given, other in ((node.left, node.right), (node.right, node.left)):
            one = self._number_behind(given)
            if (
                isinstance(one, ast.Constant)
                and isinstance(one.value, float)
                and 0 < one.value <= _LARGEST_EPS
            ):
                before = self._better
                text = self._log(other)  # an eps is not needed where the logarithm cannot see a 0
                if self._better and not before:
                    return text
            if _is_one(one):
                return self._one_plus(self._behind(other))
        return None

    def _number_behind(self, node: ast.expr) -> ast.expr:
        """The number that a name stands for: eps = 1e-8."""
        value = self._site.assigned(node.id, self._at) if isinstance(node, ast.Name) else None
        return value if isinstance(value, ast.Constant) else node

    def _one_plus(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call) and called(node) == "exp" and self._site.functional:
            inside = argument(node, self._site)
            if inside is not None:
                self._better = True
                return f"{self._site.functional}.softplus({self._inner(inside)})"
        return None

    def _one_minus(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call) and called(node) == "sigmoid" and self._site.functional:
            inside = argument(node, self._site)
            if inside is not None:
                self._better = True
                return f"{self._site.functional}.logsigmoid(-{self._grouped(self._inner(inside))})"
        known = log_of_one_minus(node, self._site, self._behind)
        if known is not None:
            self._better = True
            return known[1](self._twice(known[0]))
        return None

    def _grouped(self, text: str) -> str:
        return f"({text})" if _needs_parentheses(text) else text


def _is_number(node: ast.expr) -> bool:
    """math.sqrt(2 * math.pi): no tensor is in it."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names == {"math"}


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (1, 1.0) and not isinstance(node.value, bool)
