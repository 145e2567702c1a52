"""SourceSite: the expressions on the line of a birth, and edits of them that leave every other character alone."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "true_divide": ast.Div, "pow": ast.Pow, "add": ast.Add, "sub": ast.Sub, "rsub": ast.Sub,
    "mul": ast.Mult, "matmul": ast.MatMult, "mm": ast.MatMult, "bmm": ast.MatMult,
}  # fmt: skip
_DUNDER = {
    "truediv": "div",
    "rtruediv": "div",
    "rpow": "pow",
    "radd": "add",
    "iadd": "add",
    "rmul": "mul",
    "rdiv": "div",
}
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)


@dataclass(frozen=True, slots=True)
class Edit:
    """One expression of a file and what stands there instead."""

    start: int
    end: int
    text: str
    statement: bool = False  # no expression: nothing to look at


def edited(source: str, edits: Sequence[Edit], around: Callable[[str], str] = str) -> str:
    """The source with the edits made; `around` may wrap each new expression (a trial looks at its value).

    Where edits overlap the outermost is made: an inner one would be overwritten.
    """
    kept: list[Edit] = []
    for edit in sorted(set(edits), key=lambda e: (e.start, -e.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    for edit in reversed(kept):
        text = edit.text if edit.statement else around(edit.text)
        source = source[: edit.start] + text + source[edit.end :]
    return source


def unified_diff(before: str, after: str, file: str) -> str:
    """The change as a patch that `patch -p1` and `git apply` read."""
    name = file.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


class SourceSite:
    """A line of a file with its syntax tree."""

    def __init__(self, file: str, text: str, line: int) -> None:
        self.file, self.text, self.line = file, text, line
        self.tree = ast.parse(text)
        self._starts = [0]
        for row in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(row))
        self._rows = text.splitlines(keepends=True)

    # -- text --------------------------------------------------------------------------------------------

    def _offset(self, line: int, column: int) -> int:
        row = self._rows[line - 1] if line <= len(self._rows) else ""
        return self._starts[line - 1] + len(row.encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def code(self, node: ast.AST) -> str:
        """The characters of an expression."""
        start, end = self.span(node)
        return self.text[start:end]

    def term(self, node: ast.AST) -> str:
        """The same, in parentheses where an operator or an attribute beside it would read it otherwise."""
        code = self.code(node)
        number = isinstance(node, ast.Constant) and not isinstance(node.value, str)
        return code if isinstance(node, _SIMPLE) and not number else f"({code})"

    def replace(self, node: ast.AST, text: str) -> Edit:
        return Edit(*self.span(node), text)

    # -- tree --------------------------------------------------------------------------------------------

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def here(self, line: int | None = None) -> Iterator[ast.expr]:
        """Expressions that touch the line, outer ones first."""
        line = line or self.line
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or node.lineno):
                yield node

    def calls(self, *names: str, line: int | None = None) -> list[ast.Call]:
        """Calls of functions or methods with one of these names that touch the line."""
        return [n for n in self.here(line) if isinstance(n, ast.Call) and called(n) in names]

    def operations(self, name: str, line: int | None = None) -> list[ast.expr]:
        """Where an op is written: a call of that name, or its operator."""
        plain = name.strip("_")
        plain = _DUNDER.get(plain, plain)
        operator = _OPERATORS.get(plain)
        found: list[ast.expr] = list(self.calls(plain, plain + "_", line=line))
        for node in self.here(line):
            if operator is not None and isinstance(node, ast.BinOp) and isinstance(node.op, operator):
                found.append(node)
        return found

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that an expression is part of."""
        here: ast.AST | None = node
        while here is not None and not isinstance(here, ast.stmt):
            here = self.parents.get(here)
        return here

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, or the module, that an expression is part of."""
        here = self.parents.get(node)
        while here is not None and not isinstance(
            here, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
        ):
            here = self.parents.get(here)
        return here or self.tree

    def assigned(self, name: str, before: ast.AST) -> ast.expr | None:
        """What a name was last given before an expression, if it is certain: one plain assignment in this scope.

        A name that the value itself reads and that is assigned again (`p = softmax(p)`) has another value by then,
        so the expression cannot be repeated; None.
        """
        if isinstance(self.scope(before), ast.Lambda):
            return None
        scope = self.scope(before)
        at = self.span(before)[0]
        found: list[tuple[int, ast.expr | None]] = []
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                if self.scope(node) is not scope:
                    continue
                statement = self.statement(node)
                plain = isinstance(statement, ast.Assign) and statement.targets == [node]
                value = statement.value if plain and isinstance(statement, ast.Assign) else None
                found.append((self.span(node)[0], value))
        earlier = [pair for pair in found if pair[0] < at]
        if len(earlier) != len(found) and not self._in_loop(before):
            found = earlier
        if not earlier or (len(found) != 1 and self._in_branch(scope, name)):
            return None
        value = max(earlier, key=lambda pair: pair[0])[1]
        if value is None:
            return None
        for read in ast.walk(value):
            if isinstance(read, ast.Name) and self._assigned_between(
                read.id, self.span(value)[0], at, scope, name
            ):
                return None
        return value

    def _in_loop(self, node: ast.AST) -> bool:
        here = self.parents.get(node)
        while here is not None and not isinstance(here, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            if isinstance(here, (ast.For, ast.While)):
                return True
            here = self.parents.get(here)
        return False

    def _in_branch(self, scope: ast.AST, name: str) -> bool:
        """Some assignment of the name is conditional."""
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                here = self.parents.get(node)
                while here is not None and here is not scope:
                    if isinstance(here, (ast.If, ast.Try)):
                        return True
                    here = self.parents.get(here)
        return False

    def _assigned_between(self, name: str, start: int, end: int, scope: ast.AST, target: str) -> bool:
        if name == target:
            return True
        return any(
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Store)
            and start < self.span(node)[0] < end
            for node in ast.walk(scope)
        )

    @cached_property
    def torch(self) -> str | None:
        """The name by which the file knows torch."""
        return self._imported("torch")

    @cached_property
    def functional(self) -> str | None:
        """The name by which the file knows torch.nn.functional."""
        known = self._imported("torch.nn.functional")
        if known is None and self.torch is not None:
            return f"{self.torch}.nn.functional"
        return known

    def is_of_torch(self, name: str) -> bool:
        """Whether a dotted name is torch or a part of it, as this file imports it: nn.functional."""
        return name.replace(".", "").isidentifier() and name.partition(".")[0] in self._torch_names

    @cached_property
    def _torch_names(self) -> frozenset[str]:
        """The names that are torch, or are imported from it."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                of_torch = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
                found.update(alias.asname or "torch" for alias in of_torch)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
                found.update(alias.asname or alias.name for alias in node.names)
        return frozenset(found)

    def _imported(self, module: str) -> str | None:
        package, _, last = module.rpartition(".")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == module and (alias.asname or "." not in module):
                        return alias.asname or alias.name
                    if alias.name.startswith(module + ".") and alias.asname is None and "." not in module:
                        return module
            if isinstance(node, ast.ImportFrom) and node.module == package and package:
                for alias in node.names:
                    if alias.name == last:
                        return alias.asname or alias.name
        return None


_PURE = frozenset({
    "abs", "all", "amax", "amin", "any", "argmax", "argmin", "chunk", "clamp", "clamp_max", "clamp_min",
    "clone", "contiguous", "cos", "cumsum", "detach", "diag", "diff", "div", "dot", "einsum", "eq", "exp",
    "expand", "expand_as", "expm1", "finfo", "flatten", "float", "gather", "ge", "gt", "index_add",
    "index_select", "item", "le", "len", "log", "log1p", "log_softmax", "logsigmoid", "logsumexp", "lt",
    "masked_fill", "matmul", "max", "mean", "min", "mul", "ne", "neg", "norm", "numel", "ones", "ones_like",
    "permute", "pow", "prod", "reciprocal", "relu", "repeat", "reshape", "rsqrt", "scatter_add", "select",
    "sigmoid", "sign", "sin", "size", "softmax", "softplus", "sqrt", "square", "squeeze", "stack", "std",
    "sub", "sum", "t", "tanh", "to", "transpose", "type", "unbind", "unsqueeze", "var", "view", "where",
    "zeros", "zeros_like",
})  # fmt: skip


def is_pure(node: ast.AST) -> bool:
    """Whether an expression may be computed twice: no module, no random number, no function that nobody knows."""
    return all(called(one) in _PURE for one in ast.walk(node) if isinstance(one, ast.Call)) and not any(
        isinstance(one, (ast.NamedExpr, ast.Await, ast.Yield)) for one in ast.walk(node)
    )


def new_name(site: SourceSite, word: str, number: int = 0) -> str:
    """A name that the file does not use: the word, or with a number that is at least this."""
    used = {node.id for node in ast.walk(site.tree) if isinstance(node, ast.Name)}
    return next(
        name for name in (f"{word}_{n}" if n else word for n in range(number, 10_000)) if name not in used
    )


def called(node: ast.Call) -> str:
    """The last part of a called name: log for torch.log(x), x.log() and log(x)."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


_OF_NUMBERS = frozenset({"math", "np", "numpy", "cmath"})
_MODULES = frozenset({"torch", "F", "math", "np", "torch.special", "torch.linalg", "linalg"})


def is_method(node: ast.Call, site: SourceSite) -> bool:
    """x.log() and not torch.log(x)."""
    if not isinstance(node.func, ast.Attribute):
        return False
    owner = site.code(node.func.value)
    return owner not in _MODULES and not site.is_of_torch(owner)


def is_of_numbers(node: ast.expr, site: SourceSite) -> bool:
    """math.log(4 * math.pi): a function of plain numbers, which no tensor passes."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
        site.code(node.func.value) in _OF_NUMBERS
    )  # fmt: skip


def argument(node: ast.expr, site: SourceSite, index: int = 0, keyword: str = "input") -> ast.expr | None:
    """The index-th tensor of an op, whichever way it is written: torch.log(x), x.log(), a / b."""
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[index] if index < 2 else None
    if not isinstance(node, ast.Call):
        return None
    given: list[ast.expr] = list(node.args)
    if is_method(node, site) and isinstance(node.func, ast.Attribute):
        given.insert(0, node.func.value)
    if any(isinstance(one, ast.Starred) for one in given):
        return None
    if index < len(given):
        return given[index]
    return next((k.value for k in node.keywords if k.arg == keyword), None)


def with_argument(node: ast.expr, site: SourceSite, index: int, text: str) -> str | None:
    """The op with its index-th tensor written as `text`, everything else as it was."""
    old = argument(node, site, index)
    if old is None:
        return None
    start, end = site.span(node)
    inner, after = site.span(old)
    # A method's own tensor and a side of an operator need parentheses if the text is an operation itself.
    wraps = isinstance(node, ast.BinOp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.value is old
    )
    if wraps:
        inner, after = _with_parentheses(site.text, inner, after, start, end)
        text = text if _is_term(text) else f"({text})"
    return site.text[start:inner] + text + site.text[after:end]


def _with_parentheses(text: str, inner: int, after: int, start: int, end: int) -> tuple[int, int]:
    """Grow a span over the parentheses that stand around an operand."""
    while True:
        left, right = inner - 1, after
        while left >= start and text[left].isspace():
            left -= 1
        while right < end and text[right].isspace():
            right += 1
        if (
            left >= start
            and right < end
            and text[left] == "("
            and text[right] == ")"
            and not _is_call(text[start:left])
        ):
            inner, after = left, right + 1
            continue
        return inner, after


def _is_call(before: str) -> bool:
    before = before.rstrip()
    return bool(before) and (before[-1].isalnum() or before[-1] in "_)]")


def _is_term(text: str) -> bool:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))


def needs_parentheses(text: str) -> bool:
    """Whether an operator or an attribute beside this expression would read it otherwise."""
    return not _is_term(text)
