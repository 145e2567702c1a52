"""Read a Python file into a SourceFile; what cannot be read is refused in one sentence."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from pathlib import Path

from stayfinite.findings.subjects.source_file import NamedConstant, SourceFile
from stayfinite.readers.source.floors import floors_a_log
from stayfinite.readers.source.index import Index, index, updates_only
from stayfinite.readers.source.names import dotted, imports, last_name
from stayfinite.readers.source.statements import NO_GRAD, Executor
from stayfinite.readers.source.suppressions import suppressions
from stayfinite.readers.source.training import constructed, function_facts
from stayfinite.readers.source.vocabulary import EPS_NAME

MOST_BYTES = 4 << 20  # no one writes 4 MB of Python by hand
_FRAMEWORKS = ("transformers", "lightning", "accelerate")


class UnreadableSource(Exception):
    """The file cannot be linted; the message says why."""


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file, by its own encoding line, else UTF-8."""
    try:
        if not path.is_file():
            raise UnreadableSource(f"{path}: not a regular file")
        size = path.stat().st_size
        if size > most:
            raise UnreadableSource(
                f"{path}: {size / 1e6:.0f} MB is too large for a source or configuration file"
            )
        raw = path.read_bytes()
    except OSError as trouble:
        raise UnreadableSource(f"{path}: cannot be opened ({trouble.strerror or trouble})") from trouble
    if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableSource(f"{path}: a binary file")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif path.suffix == ".py":
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        except SyntaxError as trouble:
            raise UnreadableSource(f"{path}: the text is not UTF-8 and no encoding is declared") from trouble
    else:
        encoding = "utf-8-sig"
    try:
        return raw.decode(encoding)
    except (UnicodeDecodeError, LookupError) as trouble:
        named = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise UnreadableSource(f"{path}: the text is not {named}") from trouble


def parse(text: str, path: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are another linter's business
            return ast.parse(text)
    except SyntaxError as trouble:
        raise UnreadableSource(f"{path}:{trouble.lineno}: not valid Python ({trouble.msg})") from trouble
    except (RecursionError, MemoryError, ValueError) as trouble:
        raise UnreadableSource(f"{path}: nested too deeply to be parsed") from trouble


def read_source(text: str, path: str) -> SourceFile:
    """Parse and follow a file."""
    return read_tree(parse(text, path), text, path)


def read_tree(tree: ast.Module, text: str, path: str) -> SourceFile:
    lines = text.splitlines()
    source = SourceFile(path, text, suppressed=suppressions(lines))
    if "torch" not in text:  # the rules speak of torch alone
        if any(framework in text for framework in _FRAMEWORKS):
            source.calls = _called(tree)
        return source
    try:
        nodes = index(tree)
        if _only_logs_to_torch(nodes):
            return source
        source.constants = [] if updates_only(nodes.classes) else _constants(nodes)
        executor = Executor(lines, imports(nodes.imports))
        executor.follow(nodes, tests_finite="finite" in text or "isnan" in text)
        source.operations = executor.sight.operations
        source.calls = frozenset(executor.sight.calls)
        if any(word in text for word in ("step(", "backward(", "isnan", "load_state_dict(")):
            source.functions = function_facts(nodes, constructed(nodes))
    except RecursionError as trouble:
        raise UnreadableSource(f"{path}: nested too deeply to be followed") from trouble
    source.uses_scaler = "GradScaler" in text or "scaler" in text.lower()
    return source


def _only_logs_to_torch(nodes: Index) -> bool:
    """All that is imported of torch is its writer of TensorBoard logs: the arrays are another library's."""
    modules = [name for node in nodes.imports for name in _modules(node) if name.partition(".")[0] == "torch"]
    return bool(modules) and all(name.startswith("torch.utils.tensorboard") for name in modules)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def _called(tree: ast.Module) -> frozenset[str]:
    """The last names of everything called."""
    names = [last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return frozenset(name for name in names if name)


def _constants(nodes: Index) -> list[NamedConstant]:
    """Numbers with a name that says eps."""
    found: list[NamedConstant] = []
    for node in nodes.assignments:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(node.value, ast.Constant):
            _note(found, (dotted(target) or "").rpartition(".")[2], node.value, "assignment")
    for keyword in nodes.keywords:
        if keyword.arg and isinstance(keyword.value, ast.Constant):
            _note(found, keyword.arg, keyword.value, "keyword")
    for function in nodes.functions:
        if any(_ends_gradients(decorator) for decorator in function.decorator_list):
            continue
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        for name, default in zip(reversed(names), reversed(function.args.defaults), strict=False):
            if not floors_a_log(function, name):
                _note(found, name, default, "default")
        for argument, given in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if given is not None and not floors_a_log(function, argument.arg):
                _note(found, argument.arg, given, "default")
    return found


def _ends_gradients(decorator: ast.expr) -> bool:
    name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    return name.rpartition(".")[2] in NO_GRAD


def _note(found: list[NamedConstant], name: str, node: ast.expr, role: str) -> None:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and EPS_NAME.search(name)
        and "eps" in name.lower()
    ):
        found.append(NamedConstant(name, node.value, node.lineno, node.col_offset + 1, role))
