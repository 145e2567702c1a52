"""A pickle interpreter that runs nothing: no import, no call, no attribute of a real object is set.

Classes and functions stay names. What is known to be a tensor becomes a reference to its bytes (see
`rebuild`); everything else becomes an `Opaque`. Python's own unpickler is not used: even with
`find_class` refused it can be made to allocate gigabytes by a ten-byte file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from stayfinite.findings.subjects.checkpoint import Problem
from stayfinite.readers.checkpoint.contents import Opaque
from stayfinite.readers.checkpoint.pickle_stream import PickleStream, Span
from stayfinite.readers.checkpoint.source import Unreadable

# A pickle byte can cost about a hundred bytes of memory; four million values stay well under a gigabyte.
_MOST_OPERATIONS = 4_000_000
_OPERATIONS_OF_A_TENSOR = 64
_SHORT_BYTES = 1 << 12
_MARK = object()
_STOP = ord(".")


class GlobalName(str):
    """The name of a class or function, such as "collections.OrderedDict"; nothing more."""

    __slots__ = ()


class PickleMachine:
    """Reads one pickle from a stream. `call` and `build` decide what calls and states become."""

    def __init__(
        self,
        stream: PickleStream,
        *,
        persistent: Callable[[Any], Any],
        call: Callable[[Any, tuple[Any, ...]], Any],
        build: Callable[[Any, Any], Any],
    ) -> None:
        self.stream = stream
        self.globals: dict[str, int] = {}
        self.duplicates: list[str] = []
        self._allowed = _MOST_OPERATIONS
        self._persistent = persistent
        self._call = call
        self._build = build

    def load(self) -> Any:
        """The value of the pickle; `Unreadable` for anything malformed."""
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        start = self.stream.tell()
        try:
            return self._run()
        except (IndexError, KeyError, struct.error, UnicodeDecodeError, ValueError, TypeError) as trouble:
            raise Unreadable(
                f"{self.stream.source.name}: the pickle that starts at byte {start} is damaged near byte "
                f"{self.stream.tell()} ({type(trouble).__name__}: {trouble})"
            ) from trouble

    def problems(self) -> list[Problem]:
        """A dictionary that names a key twice: the first value would be lost on loading."""
        if not self.duplicates:
            return []
        keys = self.duplicates[:10]
        message = f"the key {keys[0]!r} is stored twice in one dictionary"
        return [Problem("duplicate", self.stream.source.name, message, {"keys": keys})]

    def allow_tensor(self) -> None:
        """A tensor whose bytes are really there pays for the instructions that describe it."""
        self._allowed += _OPERATIONS_OF_A_TENSOR

    def _run(self) -> Any:
        """The instructions that make up nearly all of a checkpoint are done here; the others have an action each."""
        stream, stack, memo = self.stream, self._stack, self._memo
        done = 0
        while done < self._allowed:
            done += 1
            block, at = stream.block, stream.at
            if at + 5 > len(block):  # near its end: by the careful way
                code = stream.read(1)[0]
                action = _ACTIONS.get(code)
                if action is None:
                    if code == _STOP:
                        return stack.pop()
                    raise ValueError(f"unknown pickle instruction {bytes([code])!r}")
                action(self)
                continue
            code = block[at]
            if code == 0x71:  # q: remember
                memo[block[at + 1]] = stack[-1]
                stream.at = at + 2
            elif code == 0x72:  # r
                memo[int.from_bytes(block[at + 1 : at + 5], "little")] = stack[-1]
                stream.at = at + 5
            elif code == 0x68:  # h: recall
                stack.append(memo[block[at + 1]])
                stream.at = at + 2
            elif code == 0x6A:  # j
                stack.append(memo[int.from_bytes(block[at + 1 : at + 5], "little")])
                stream.at = at + 5
            elif code == 0x4B:  # K: a small number
                stack.append(block[at + 1])
                stream.at = at + 2
            elif code == 0x4D:  # M
                stack.append(block[at + 1] | block[at + 2] << 8)
                stream.at = at + 3
            elif code == 0x28:  # (: a mark
                stack.append(_MARK)
                stream.at = at + 1
            elif code == _STOP:
                stream.at = at + 1
                return stack.pop()
            else:
                stream.at = at + 1
                action = _ACTIONS.get(code)
                if action is None:
                    raise ValueError(f"unknown pickle instruction {bytes([code])!r}")
                action(self)
        raise Unreadable(
            f"{self.stream.source.name}: the pickle has more than {done} instructions for the tensors it names; "
            "a checkpoint keeps its numbers in tensors, so this one is not read"
        )

    # Stack helpers

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark on the stack")
        values = stack[at + 1 :]
        del stack[at:]
        return values

    # Plain values

    def _read_bytes(self, count: int) -> bytes | Span:
        return self.stream.read(count) if count <= _SHORT_BYTES else self.stream.span(count)

    def _text(self, count: int) -> str:
        return self.stream.read(count).decode("utf-8", "surrogatepass")

    def _long_text(self) -> int:
        text = self.stream.line(most=5000).rstrip(b"L")
        return int(text)

    def _int_line(self) -> int | bool:
        text = self.stream.line(most=5000)
        return text == b"01" if text in (b"00", b"01") else int(text)

    def _signed(self, count: int) -> int:
        if count > 1 << 16:
            raise ValueError(f"an integer of {count} bytes")
        return int.from_bytes(self.stream.read(count), "little", signed=True)

    def _unsigned(self, count: int) -> int:
        return int.from_bytes(self.stream.read(count), "little")

    # Containers

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Opaque):
            target.items.extend(values)
        elif isinstance(target, set):
            target.update(key_of(value) for value in values)
        else:
            raise TypeError(f"cannot append to {type(target).__name__}")

    def _set_items(self, flat: list[Any]) -> None:
        target = self._stack[-1]
        mapping = target.mapping if isinstance(target, Opaque) else target
        if not isinstance(mapping, dict):
            raise TypeError(f"cannot set items of {type(target).__name__}")
        for raw, value in zip(flat[::2], flat[1::2], strict=True):
            key = key_of(raw)
            if key in mapping and not isinstance(target, Opaque):
                self.duplicates.append(str(key)[:200])
            mapping[key] = value

    def _set_item(self) -> None:
        value = self._stack.pop()
        self._set_items([self._stack.pop(), value])

    def _dict(self) -> None:
        flat = self._since_mark()
        self._push({})
        self._set_items(flat)

    # Names and calls

    def _global(self, module: Any, name: Any) -> GlobalName:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a class is named by something that is not text")
        full = GlobalName(f"{module}.{name}")
        self.globals[full] = self.globals.get(full, 0) + 1
        return full

    def _global_lines(self) -> None:
        module = self.stream.line().decode("utf-8")
        self._push(self._global(module, self.stream.line().decode("utf-8")))

    def _stack_global(self) -> None:
        name = self._stack.pop()
        self._push(self._global(self._stack.pop(), name))

    def _reduce(self) -> None:
        args = self._stack.pop()
        function = self._stack.pop()
        self._push(self._call(function, args if isinstance(args, tuple) else (args,)))

    def _new_object(self, with_keywords: bool) -> None:
        keywords = self._stack.pop() if with_keywords else {}
        args = self._stack.pop()
        function = self._stack.pop()
        made = self._call(function, args if isinstance(args, tuple) else (args,))
        if isinstance(made, Opaque) and isinstance(keywords, dict):
            made.mapping.update(keywords)
        self._push(made)

    def _object(self) -> None:
        values = self._since_mark()
        self._push(self._call(values[0], tuple(values[1:])))

    def _instance(self) -> None:
        module = self.stream.line().decode("utf-8")
        function = self._global(module, self.stream.line().decode("utf-8"))
        self._push(self._call(function, tuple(self._since_mark())))

    def _set_state(self) -> None:
        state = self._stack.pop()
        self._push(self._build(self._stack.pop(), state))

    def _extension(self, count: int) -> None:
        number = self._unsigned(count)
        self._push(self._global("copyreg", f"extension_{number}"))

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        self._push(self._memo[index])

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("tuple from an empty stack")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push(values)

    def _buffer(self) -> None:
        raise ValueError("it refers to buffers that are kept outside the file")


def key_of(value: Any) -> Any:
    """A dictionary key that is cheap to hash whatever the file says (nested tuples can take for ever)."""
    if value is None or isinstance(value, (str, int, float, bool, bytes, Opaque)):
        return value
    if isinstance(value, tuple) and all(isinstance(item, (str, int, float, bool)) for item in value):
        return value
    return f"<{type(value).__name__} {id(value):x}>"


_Action = Callable[[PickleMachine], object]
_BY_LETTER: dict[bytes, _Action] = {
    b"(": lambda m: m._push(_MARK),
    b"0": lambda m: m._stack.pop(),
    b"1": lambda m: m._since_mark(),
    b"2": lambda m: m._push(m._stack[-1]),
    b"N": lambda m: m._push(None),
    b"\x88": lambda m: m._push(True),
    b"\x89": lambda m: m._push(False),
    b"\x80": lambda m: m.stream.read(1),
    b"\x95": lambda m: m.stream.read(8),
    # numbers
    b"I": lambda m: m._push(m._int_line()),
    b"L": lambda m: m._push(m._long_text()),
    b"J": lambda m: m._push(m._signed(4)),
    b"K": lambda m: m._push(m._unsigned(1)),
    b"M": lambda m: m._push(m._unsigned(2)),
    b"\x8a": lambda m: m._push(m._signed(m._unsigned(1))),
    b"\x8b": lambda m: m._push(m._signed(m._unsigned(4))),
    b"F": lambda m: m._push(float(m.stream.line(most=100))),
    b"G": lambda m: m._push(struct.unpack(">d", m.stream.read(8))[0]),
    # text and bytes
    b"S": lambda m: m._push(m.stream.line()[1:-1].decode("utf-8", "replace")),
    b"T": lambda m: m._push(m._read_bytes(m._unsigned(4))),
    b"U": lambda m: m._push(m.stream.read(m._unsigned(1)).decode("latin-1")),
    b"V": lambda m: m._push(m.stream.line().decode("raw-unicode-escape")),
    b"X": lambda m: m._push(m._text(m._unsigned(4))),
    b"\x8c": lambda m: m._push(m._text(m._unsigned(1))),
    b"\x8d": lambda m: m._push(m._text(m._unsigned(8))),
    b"B": lambda m: m._push(m._read_bytes(m._unsigned(4))),
    b"C": lambda m: m._push(m._read_bytes(m._unsigned(1))),
    b"\x8e": lambda m: m._push(m._read_bytes(m._unsigned(8))),
    b"\x96": lambda m: m._push(m._read_bytes(m._unsigned(8))),
    b"\x97": lambda m: m._buffer(),
    b"\x98": lambda m: m._buffer(),
    # containers
    b"]": lambda m: m._push([]),
    b"l": lambda m: m._push(m._since_mark()),
    b"a": lambda m: m._append([m._stack.pop()]),
    b"e": lambda m: m._append(m._since_mark()),
    b"}": lambda m: m._push({}),
    b"d": lambda m: m._dict(),
    b"s": lambda m: m._set_item(),
    b"u": lambda m: m._set_items(m._since_mark()),
    b")": lambda m: m._push(()),
    b"t": lambda m: m._push(tuple(m._since_mark())),
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"\x8f": lambda m: m._push(set()),
    b"\x90": lambda m: m._append(m._since_mark()),
    b"\x91": lambda m: m._push({key_of(value) for value in m._since_mark()}),
    # memo
    b"p": lambda m: m._put(int(m.stream.line(most=20))),
    b"q": lambda m: m._put(m._unsigned(1)),
    b"r": lambda m: m._put(m._unsigned(4)),
    b"\x94": lambda m: m._put(len(m._memo)),
    b"g": lambda m: m._get(int(m.stream.line(most=20))),
    b"h": lambda m: m._get(m._unsigned(1)),
    b"j": lambda m: m._get(m._unsigned(4)),
    # names, calls, states: data here
    b"c": lambda m: m._global_lines(),
    b"\x93": lambda m: m._stack_global(),
    b"i": lambda m: m._instance(),
    b"o": lambda m: m._object(),
    b"R": lambda m: m._reduce(),
    b"\x81": lambda m: m._new_object(False),
    b"\x92": lambda m: m._new_object(True),
    b"b": lambda m: m._set_state(),
    b"P": lambda m: m._push(m._persistent(m.stream.line().decode("utf-8"))),
    b"Q": lambda m: m._push(m._persistent(m._stack.pop())),
    b"\x82": lambda m: m._extension(1),
    b"\x83": lambda m: m._extension(2),
    b"\x84": lambda m: m._extension(4),
}
_ACTIONS: dict[int, _Action] = {letter[0]: action for letter, action in _BY_LETTER.items()}
