"""A forked child computes as its parent would have, and nothing that it does comes back but the value."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stayfinite.sandbox import fork, support
from stayfinite.sandbox.fork import forked
from stayfinite.sandbox.memory import shared_mappings
from stayfinite.sandbox.process import Kind, remove_scratch

KINDS: list[Kind] = ["namespaces", "landlock"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    wanted: Kind = request.param
    if not support.allows(wanted):
        pytest.skip(f"no {wanted} here: {support.sandbox().reason}")
    return wanted


@pytest.fixture
def namespaces() -> Kind:
    if support.sandbox().kind != "namespaces":
        pytest.skip(support.sandbox().reason)
    return "namespaces"


def tried(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__
    return "done"


def test_a_training_step_gives_the_same_in_the_child(kind: Kind) -> None:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    before = [p.clone() for p in net.parameters()]
    x = torch.randn(512, 300)
    net(x).sum().backward()  # with threads, which the child does not have

    def step() -> list[float]:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        loss = net(x + 0 * torch.randn(300)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [float(loss.detach()), float(torch.rand(())), random.random()]

    state, python = torch.get_rng_state(), random.getstate()
    done = forked(step, 60, kind)
    assert done.finished, done
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
    assert done.value == pytest.approx(step(), rel=1e-5)


def test_files_stay_as_they_are(tmp_path: Path, kind: Kind) -> None:
    for name in ("kept", "gone", "old"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/in").write_text("in")
    handle, reading = (tmp_path / "kept").open("a"), (tmp_path / "old").open()
    handle.write("buffered, ")
    assert reading.read(1) == "o"
    numbers = [os.open(tmp_path / "old", os.O_RDWR), os.open(tmp_path, os.O_RDONLY)]

    def work() -> dict[str, str]:
        said = {
            "open file": tried(lambda: (handle.write("child"), handle.flush())),
            "reads on": reading.read(),
            "descriptor": tried(lambda: os.write(numbers[0], b"XXX")),
            "by folder": tried(lambda: os.unlink("gone", dir_fd=numbers[1])),
            "remove": tried(lambda: (tmp_path / "old").unlink()),
            "rename": tried(lambda: (tmp_path / "kept").rename(tmp_path / "moved")),
            "make": tried(lambda: (tmp_path / "new").write_text("new")),
            "shell": str(subprocess.call(f"rm -rf {tmp_path}/folder; echo x >> {tmp_path}/kept", shell=True)),
        }
        said["sees"] = str((tmp_path / "new").exists())
        return said

    done = forked(work, 30, kind)
    assert done.finished, done
    assert isinstance(done.value, dict) and done.value["reads on"] == "ld"
    assert done.value["sees"] == str(kind == "namespaces")
    assert reading.read() == "ld"
    os.write(numbers[0], b"n")
    handle.close()
    reading.close()
    assert (tmp_path / "kept").read_text() == "keptbuffered, "
    assert (tmp_path / "old").read_text() == "nld"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "gone", "in", "kept", "old"]
    for number in numbers:
        os.close(number)


def test_shared_memory_stays_as_it_is(tmp_path: Path, kind: Kind) -> None:
    shared = torch.zeros(1000).share_memory_()
    anonymous = mmap.mmap(-1, 4096)
    (tmp_path / "mapped").write_bytes(b"\0" * 8192)
    with (tmp_path / "mapped").open("r+b") as handle:
        mapped = mmap.mmap(handle.fileno(), 0)
    shared[1] = 7

    def work() -> list[float]:
        seen = [float(shared.sum()), mapped[0], anonymous[0]]
        shared.fill_(1)
        mapped[0] = anonymous[0] = 1
        mapped.flush()
        return [*seen, float(shared.sum()), mapped[0], anonymous[0]]

    done = forked(work, 30, kind)
    assert done.value == [7, 0, 0, 1000, 1, 1], done
    assert float(shared.sum()) == 7 and mapped[0] == anonymous[0] == 0
    assert (tmp_path / "mapped").read_bytes() == b"\0" * 8192


def test_messages_do_not_leave(tmp_path: Path, kind: Kind) -> None:
    heard: list[bytes] = []
    with (
        socket.socket() as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        for one in (tcp, udp):
            one.bind(("127.0.0.1", 0))
        unix.bind("\0stayfinite-test" + str(os.getpid()))
        path = socket.socket(socket.AF_UNIX)
        path.bind(str(tmp_path / "socket"))
        mine, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.write(writing, b"batch")
        for one in (tcp, unix, path):
            one.listen()

        def work() -> dict[str, str]:
            return {
                "tcp": tried(lambda: socket.create_connection(tcp.getsockname(), 2)),
                "udp": tried(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"u", udp.getsockname())),
                "abstract": tried(lambda: socket.socket(socket.AF_UNIX).connect(unix.getsockname())),
                "path": tried(lambda: socket.socket(socket.AF_UNIX).connect(path.getsockname())),
                "open": tried(lambda: mine.send(b"m")),
                "pipe": str(len(os.read(reading, 9))),
            }

        done = forked(work, 30, kind)
        assert done.finished, done
        for one in (tcp, udp, unix, path, theirs):
            one.setblocking(False)
        for one in (udp, theirs):
            assert tried(lambda one=one: heard.append(one.recv(9))) == "BlockingIOError", (done, heard)
        refused = (tcp, unix, path) if kind == "namespaces" else (tcp, unix)
        for one in refused:
            assert tried(lambda one=one: one.accept()) == "BlockingIOError", done
        assert os.read(reading, 9) == b"batch"
        path.close()
        for number in (reading, writing):
            os.close(number)
        mine.close()
        theirs.close()


def test_a_database_gets_no_second_row(tmp_path: Path, namespaces: Kind) -> None:
    base = sqlite3.connect(tmp_path / "rows.db")
    base.execute("create table rows (step)")
    base.commit()

    def work() -> int:
        base.execute("insert into rows values (1)")
        base.commit()
        (count,) = base.execute("select count(*) from rows").fetchone()
        return int(count)

    done = forked(work, 30)
    assert done.value == 1, done
    assert base.execute("select count(*) from rows").fetchone() == (0,)
    base.close()


def test_other_processes_are_out_of_reach(kind: Kind) -> None:
    other = subprocess.Popen(["sleep", "60"])
    done = forked(lambda: tried(lambda: os.kill(other.pid, signal.SIGKILL)), 30, kind)
    assert done.value in ("ProcessLookupError", "PermissionError"), done
    assert other.poll() is None
    other.kill()
    other.wait()


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def test_workers_of_a_loader_go_on(kind: Kind) -> None:
    seen = []
    iterator: Iterator[torch.Tensor] = iter(DataLoader(Squares(), batch_size=2, num_workers=2))
    for number, batch in enumerate(iterator):
        if number == 2:

            def work(batch: torch.Tensor = batch) -> float:
                nonlocal iterator
                total = float(batch.mul_(100).sum())
                del iterator  # the child lets go of it: its workers are not the child's to stop
                return total

            done = forked(work, 30, kind)
            assert done.value == 100 * float(batch.sum()), done
        seen += batch[:, 0].tolist()
    assert seen == [float(i) for i in range(12)]


def test_an_error_a_hang_and_a_crash_are_told_apart(kind: Kind) -> None:
    def fails() -> None:
        raise ValueError("no")

    done = forked(fails, 30, kind)
    assert (
        done.status == "raised"
        and done.reason.startswith("ValueError: no (")
        and "test_fork.py" in done.reason
    )
    assert forked(lambda: sys.exit(3), 30, kind).reason.startswith("SystemExit: 3")
    done = forked(lambda: time.sleep(60), 0.5, kind)
    assert (done.status, done.reason) == ("timed out", "timed out after 0.5 s")
    assert forked(lambda: os._exit(5), 30, kind).reason.endswith("exit code 5 instead of an answer")
    done = forked(lambda: os.kill(os.getpid(), signal.SIGKILL) or os.abort(), 30, kind)
    assert done.status == "died"
    assert forked(lambda: {1, 2}, 30, kind).status == "raised"  # type: ignore[arg-type, return-value]
    large = forked(lambda: "x" * 3_000_000, 30, kind)
    assert large.finished and len(str(large.value)) == 3_000_000


def test_several_at_once_and_from_a_thread(kind: Kind) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(forked(lambda: n, 60, kind).value)) for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2]


PARENT = """
    import atexit, os, subprocess, sys, time
    from stayfinite.sandbox.fork import forked

    class Leaving:
        def __del__(self):
            print("finalizer", flush=True)

    left = Leaving()
    atexit.register(print, "at exit", flush=True)
    print("unflushed", end=" ")

    def work():
        subprocess.Popen(["sleep", "4711.%d" % int(sys.argv[2])], start_new_session=True)
        print("child", flush=True)
        open(sys.argv[1], "w")
        if sys.argv[3] == "hang":
            time.sleep(60)

    if sys.argv[3] == "hang":
        print("begin", file=sys.stderr, flush=True)
    print(forked(work, 50, sys.argv[4]).status)
"""


def sleeping(number: int) -> bool:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return f"sleep 4711.{number}" in found


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def parent(tmp_path: Path, number: int, how: str, kind: Kind) -> subprocess.Popen[str]:
    (tmp_path / "parent.py").write_text(textwrap.dedent(PARENT))
    command = [sys.executable, "parent.py", str(tmp_path / "mark"), str(number), how, kind]
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_exit_of_the_parent_happens_once(tmp_path: Path, namespaces: Kind) -> None:
    said, _ = parent(tmp_path, 1, "quick", namespaces).communicate(timeout=60)
    assert said == "unflushed finished\nat exit\nfinalizer\n"
    assert not sleeping(1)  # what the child had started ended with it


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_dies_with_its_parent(tmp_path: Path, number: int, namespaces: Kind) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    process = parent(tmp_path, 100 + number, "hang", namespaces)
    wait_until(lambda: sleeping(100 + number))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number if number != signal.SIGINT else process.returncode in (-2, 1, 130)
    wait_until(lambda: not sleeping(100 + number))


def test_it_declines_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(support.VARIABLE, "none")
    done = forked(lambda: 1, 5)
    assert done.status == "declined" and done.reason == "STAYFINITE_SANDBOX=none was set"
    assert fork.obstacle() == done.reason


def test_layers_on_disk_do_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespaces: Kind) -> None:
    """Before Linux 6.6 a file system in memory cannot hold what an overlay writes."""
    from stayfinite.sandbox import namespaces as rooms

    monkeypatch.setattr(rooms, "takes_attributes", lambda folder: False)
    (tmp_path / "results/old").mkdir(parents=True)
    (tmp_path / "results/old/model").write_text("precious")
    made: list[Path] = []
    monkeypatch.setattr(fork, "remove_scratch", lambda folder: made.append(folder))

    def work() -> list[str]:
        shutil.rmtree(tmp_path / "results")
        (tmp_path / "results/new").mkdir(parents=True)
        (tmp_path / "results/new/model").write_text("new")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "x").write_text("x")
        return sorted(path.name for path in (tmp_path / "results").rglob("*"))

    done = forked(work, 60)
    assert done.value == ["model", "new"], done
    assert (tmp_path / "results/old/model").read_text() == "precious"
    assert not (tmp_path / "results/new").exists()
    (scratch,) = made
    assert any(scratch.iterdir())
    remove_scratch(scratch)
    assert not scratch.exists()


def test_a_store_of_ranks_that_this_process_serves_is_no_obstacle() -> None:
    """Its server keeps requests to the kernel in shared memory (io_uring), of which the child has a copy."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True)
    store.set("before", "1")
    child = forked(lambda: [one.path for one in shared_mappings(Path("/proc/self/maps").read_text())], 60)
    assert child.finished and child.value == []
    store.set("after", "2")
    assert store.get("after") == b"2" and store.get("before") == b"1"
