"""What neither namespaces nor Landlock cover is refused at the system call itself, by a filter of the kernel.

Some calls are answered with an error, some with a success that did nothing: a script that sets the mode or the time of
a file need not fail, and the file need not change.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from stayfinite.sandbox import syscalls

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "x86_64": {
        "socket": 41, "truncate": 76, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94,
        "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "fchmodat": 268, "fchownat": 260,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "add_key": 248, "request_key": 249, "keyctl": 250, "kill": 62, "tkill": 200,
        "mq_open": 240, "shmget": 29, "msgget": 68, "semget": 64,
    },
    "aarch64": {
        "socket": 198, "truncate": 45, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55,
        "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
        "fremovexattr": 16, "add_key": 217, "request_key": 218, "keyctl": 219, "kill": 129, "tkill": 130,
        "mq_open": 180, "shmget": 194, "msgget": 186, "semget": 190,
    },
}  # fmt: skip
_SAME_EVERYWHERE = {"io_uring_setup": 425, "fchmodat2": 452, "pidfd_send_signal": 424}
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _RETURN, _AND = 0x20, 0x15, 0x06, 0x54
_NUMBER_AT, _ARCH_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE, _SOCK_STREAM = 0xF, 1


@dataclass(frozen=True, slots=True)
class Filter:
    """Calls to answer with an error, calls to answer with nothing done, and which sockets may be made."""

    refused: tuple[str, ...] = ()
    pretended: tuple[str, ...] = ()
    stream_families: tuple[int, ...] = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
    other_families: tuple[int, ...] = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)


_KEYS = ("add_key", "request_key", "keyctl")  # the kernel's keyrings are everybody's
NAMESPACED = Filter(refused=_KEYS)
LANDLOCKED = Filter(
    refused=(*_KEYS, "io_uring_setup", "mq_open", "shmget", "msgget", "semget"),
    pretended=("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime",
               "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "removexattr",
               "lremovexattr", "fremovexattr"),
    other_families=(_AF_UNIX, _AF_NETLINK),  # no datagrams: Landlock knows only TCP
)  # fmt: skip


def install(wanted: Filter) -> None:
    """Filter this process and everything it starts. Needs `no_new_privileges` first."""
    program = b"".join(_program(wanted))
    count = len(program) // 8
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    described = Program(count, ctypes.addressof(buffer))
    syscalls.prctl(syscalls.PR_SET_SECCOMP, 2, ctypes.addressof(described))


def _program(wanted: Filter) -> list[bytes]:
    numbers = {**_NUMBERS[platform.machine()], **_SAME_EVERYWHERE}
    made = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, _AUDIT_ARCH[platform.machine()], yes=1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),  # 32-bit programs: nothing is known of their calls
        _op(_LOAD, _NUMBER_AT),
    ]
    for names, answer in ((wanted.refused, _ERRNO | errno.EPERM), (wanted.pretended, _ERRNO)):
        for name in names:
            if name in numbers:
                made += [_op(_EQUAL, numbers[name], no=1), _op(_RETURN, answer)]
    sockets = _socket_rules(wanted)
    made.append(_op(_EQUAL, numbers["socket"], no=len(sockets)))
    return [*made, *sockets, _op(_RETURN, _ALLOW)]


def _socket_rules(wanted: Filter) -> list[bytes]:
    streams = _families(wanted.stream_families)
    others = _families(wanted.other_families)
    return [
        _op(_LOAD, _SECOND_AT),
        _op(_AND, _SOCK_TYPE),
        _op(_EQUAL, _SOCK_STREAM, no=len(streams)),
        *streams,
        *others,
    ]


def _families(allowed: Sequence[int]) -> list[bytes]:
    made = [_op(_LOAD, _FIRST_AT)]
    for family in allowed:
        made += [_op(_EQUAL, family, no=1), _op(_RETURN, _ALLOW)]
    return [*made, _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)]


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)
