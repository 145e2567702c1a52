"""LoopBody: the body of the loop that is running now, as something that can be called, once more, in a child."""

from __future__ import annotations

import ast
import copy
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Final, Protocol

import torch

import stayfinite

_OTHERS: Final = tuple(
    os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep  # noqa: PTH100, PTH120
    for module in (stayfinite, torch)
) + tuple(sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "purelib", "platlib"))
_BATCHES: Final = "__stayfinite_batches__"
_LEFT: Final = "__stayfinite_left__"
_TRANSPARENT: Final = ("tqdm", "trange", "iter", "islice", "track", "watch")


class NotRepeatable(Exception):
    """Why the body cannot be run again, as the end of a sentence."""


class Receiver(Protocol):
    """To whom the calls that a body makes are brought: backward passes and updates."""

    def receiving(self, replay: Any) -> AbstractContextManager[None]: ...


class _Left(BaseException):
    """The body ended the loop's function."""


class LoopBody:
    """A `for` statement of the user's, with the frame that it runs in. Called, it runs with other batches.

    In a child only: what the body assigns is assigned there, in a copy of its names if it stands in a function.
    """

    def __init__(self, frame: FrameType, receiver: Receiver) -> None:
        self.receiver = receiver
        self.file = os.path.realpath(frame.f_code.co_filename)
        self._frame = frame
        text = "".join(linecache.getlines(frame.f_code.co_filename))
        loops = _loops(text)
        found = [number for number, loop in enumerate(loops) if _header(loop, frame.f_lineno)]
        if not found:
            raise NotRepeatable("the guard sees no `for` statement that asks for these batches")
        self._number = found[-1]
        self._plain = loops[self._number]
        if any(
            isinstance(node, (ast.Nonlocal, ast.Await, ast.Yield, ast.YieldFrom))
            for node in ast.walk(self._plain)
        ):
            raise NotRepeatable("the body of its loop yields, awaits or rebinds names of an outer function")
        self._place = _place_of_batch(self._plain)

    @classmethod
    def running(cls, receiver: Receiver) -> LoopBody:
        """That of the loop that asks for its next batch now."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((*_OTHERS, "<")):
            frame = frame.f_back
        if frame is None:
            raise NotRepeatable("no loop asks for these batches")
        return cls(frame, receiver)

    def edited(self, texts: Mapping[str, str]) -> bool:
        """Whether one of these texts changes the body itself."""
        return self.file in texts and ast.dump(self._loop(texts)) != ast.dump(self._plain)

    def __call__(
        self,
        batches: Sequence[Any],
        texts: Mapping[str, str],
        around: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
        *,
        after: int = 0,
    ) -> None:
        """Run it with each of these batches, as these texts have it; `around(batch)` is entered for each.

        The last one has the place in the loop that the body is at now, or the one before the last `after`.
        """
        frame = self._frame
        in_function = frame.f_locals is not frame.f_globals
        names = {**frame.f_globals, **frame.f_locals} if in_function else frame.f_globals
        names[_BATCHES] = self._items(batches, around, len(batches) - 1 - after)
        names[_LEFT] = _Left
        code = compile(_module(self._loop(texts)), frame.f_code.co_filename, "exec", dont_inherit=True)
        try:
            exec(code, names)
        except _Left:
            return
        finally:
            names.pop(_BATCHES).close()

    def _items(
        self, batches: Sequence[Any], around: Callable[[Any], AbstractContextManager[Any]], present: int
    ) -> Generator[Any, None, None]:
        for number, batch in enumerate(batches):
            with around(batch):
                yield self._item(batch, number - present)

    def _loop(self, texts: Mapping[str, str]) -> ast.For:
        return _loops(texts[self.file])[self._number] if self.file in texts else self._plain

    def _item(self, batch: Any, earlier: int) -> Any:
        """What the loop's target is given: the batch alone, or with a count before it."""
        place, target = self._place, self._plain.target
        if place is None:
            return batch
        assert isinstance(target, ast.Tuple)
        values: list[Any] = []
        for number, name in enumerate(target.elts):
            now: Any = self._frame.f_locals.get(name.id) if isinstance(name, ast.Name) else None
            counts = isinstance(now, int) and not isinstance(now, bool)
            values.append(batch if number == place else now + earlier if counts else now)
        return tuple(values)


def _loops(text: str) -> list[ast.For]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.For)]


def _header(loop: ast.For, line: int) -> bool:
    return loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)


def _place_of_batch(loop: ast.For) -> int | None:
    """Where in the loop's target the batch stands; None: it is the whole of it."""
    given = loop.iter
    while isinstance(given, ast.Call):
        name = given.func.attr if isinstance(given.func, ast.Attribute) else getattr(given.func, "id", "")
        if name == "watch":
            return None
        if name == "enumerate" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
            return 1
        if name == "zip" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == len(given.args):
            of = [n for n, one in enumerate(given.args) if not _is_counter(one)]
            if len(of) == 1:
                return of[0]
        if name not in _TRANSPARENT or not given.args:
            raise NotRepeatable(
                f"its loop gets the batches through {name or 'a call'}(), which cannot be asked twice"
            )
        given = given.args[0]
    if isinstance(given, (ast.Name, ast.Attribute)):
        return None
    raise NotRepeatable("it is not plain how its loop gets its batches")


def _is_counter(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
        "range",
        "count",
    )


class _WithoutReturn(ast.NodeTransformer):
    """`return` in the body leaves it; functions that it defines keep theirs."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        left = ast.Raise(exc=ast.Call(ast.Name(_LEFT, ast.Load()), [], []), cause=None)
        return ast.fix_missing_locations(ast.copy_location(left, node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _module(loop: ast.For) -> ast.Module:
    over = ast.copy_location(ast.Name(_BATCHES, ast.Load()), loop.iter)
    body = [_WithoutReturn().visit(statement) for statement in copy.deepcopy(loop.body)]
    again = ast.copy_location(ast.For(loop.target, over, body, [], None), loop)
    return ast.fix_missing_locations(ast.Module([again], []))
