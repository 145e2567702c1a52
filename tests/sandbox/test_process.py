"""A command in a sandbox: nothing of what it does is left, and nothing of it outlives its time or its parent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stayfinite.sandbox import process, support
from stayfinite.sandbox.past import Earlier, Past
from stayfinite.sandbox.process import Kind, ProcessResult

SOURCE = str(Path(process.__file__).parents[2])


@pytest.fixture(params=["namespaces", "landlock"])
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


def shell(text: str, kind: Kind, exchange: Path, **more: object) -> tuple[ProcessResult, str]:
    """Run it with its output in the exchange folder."""
    exchange.mkdir(exist_ok=True)
    said = exchange / "said"
    done = process.run(["sh", "-c", f"exec > {said} 2>&1; {text}"], kind, 30, exchange=exchange, **more)  # type: ignore[arg-type]
    return done, said.read_text() if said.exists() else ""


def test_how_it_ended_is_told(kind: Kind) -> None:
    assert process.run(["sh", "-c", "exit 3"], kind, 30).sentence == "ended with exit code 3"
    assert process.run(["sh", "-c", "kill -SEGV $$"], kind, 30).sentence == "was ended by SIGSEGV"
    assert process.run(["no-such-command"], kind, 30).sentence == "no-such-command: No such file or directory"
    seconds: list[float] = []
    done = process.run(["sleep", "60"], kind, 1.5, progress=seconds.append)
    assert done.status == "timed out" and done.sentence.startswith("timed out after") and seconds


def test_arguments_folder_environment_and_input_are_as_given(tmp_path: Path, kind: Kind) -> None:
    folder = tmp_path / "here, with: odd\\names"
    folder.mkdir()
    done, said = shell(
        'pwd; echo "$GIVEN"; env | wc -l; cat; echo end', kind, tmp_path / "x",
        environment={"GIVEN": "a b", "PATH": os.environ["PATH"]}, folder=str(folder),
    )  # fmt: skip
    assert done.exit_code == 0
    lines = said.splitlines()
    assert lines[:2] == [str(folder), "a b"] and lines[-1] == "end" and int(lines[2]) <= 6


def test_nothing_that_is_written_stays(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/in").write_text("in")
    before = {p: (p.stat().st_mtime_ns, p.stat().st_mode) for p in tmp_path.rglob("*")}
    work = f"cd {tmp_path}; echo x >> old; rm -rf folder; mkdir folder new; chmod 700 old; touch -d 2001-01-01 old; ls"
    _, said = shell(work, kind, tmp_path / "exchange")
    shutil.rmtree(tmp_path / "exchange")
    assert {p: (p.stat().st_mtime_ns, p.stat().st_mode) for p in tmp_path.rglob("*")} == before
    assert (tmp_path / "old").read_text() == "old"
    assert ("new" in said.splitlines()) == (kind == "namespaces"), said


def test_what_it_leaves_running_ends_with_it(tmp_path: Path, kind: Kind) -> None:
    mark = f"sleep 5544.{os.getpid()}"
    done, _ = shell(f"setsid {mark} & (setsid sh -c '{mark}; true' &) & sleep 0.3", kind, tmp_path / "x")
    assert done.exit_code == 0
    assert mark not in running()


PARENT = """
    import sys
    from stayfinite.sandbox import process

    process.run(["sh", "-c", sys.argv[2] + " & setsid " + sys.argv[2] + " & " + sys.argv[2]], sys.argv[1], 300)
"""


def running() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_everything_dies_with_the_parent(kind: Kind, number: int) -> None:
    mark = f"sleep 6655.{number}{len(kind)}{os.getpid()}"
    command = [sys.executable, "-c", textwrap.dedent(PARENT), kind, mark]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": SOURCE})
    wait_until(lambda: running().count(f"\n{mark}") == 3)
    parent.send_signal(number)
    parent.wait(30)
    wait_until(lambda: mark not in running())


def test_files_are_shown_as_they_were(tmp_path: Path, namespaces: Kind) -> None:
    place = tmp_path / "place"
    (place / "made/by").mkdir(parents=True)
    (place / "made/by/first").write_text("new")
    (place / "changed").write_text("new")
    (place / "now-a-folder").mkdir()
    (tmp_path / "copy").write_text("as it was")
    past = Past(
        [str(place / "made"), str(place / "not there anyway")],
        [
            Earlier(str(place / "changed"), "file", 0o600, 10**18, str(tmp_path / "copy")),
            Earlier(str(place / "gone/deep"), "file", 0o644, 10**18, str(tmp_path / "copy")),
            Earlier(str(place / "gone"), "folder", 0o755, 10**18),
            Earlier(str(place / "link"), "link", target="changed"),
            Earlier(str(place / "now-a-folder"), "file", 0o644, 10**18, str(tmp_path / "copy")),
            Earlier(str(place / "lost"), "file", 0o644, 10**18, str(tmp_path / "no copy")),
        ],
    )
    work = f"cd {place}; ls; cat changed link gone/deep; stat -c '%a %Y' changed; mv gone gone2 && ls gone2"
    done, said = shell(work, namespaces, tmp_path / "x", past=past)
    assert said == ("changed\ngone\nlink\nnow-a-folder\n" + "as it was" * 3 + "600 1000000000\ndeep\n"), said
    assert done.unlike == (str(place / "lost"),)
    assert sorted(p.name for p in place.iterdir()) == ["changed", "made", "now-a-folder"]


def test_several_at_once_see_nothing_of_each_other(tmp_path: Path, namespaces: Kind) -> None:
    def one(number: int) -> str:
        work = f"echo {number} >> {tmp_path}/same; sleep 0.3; cat {tmp_path}/same"
        return shell(work, namespaces, tmp_path / f"x{number}")[1]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == ["0\n", "1\n", "2\n"]


def test_a_huge_file_is_read_without_copying_it(tmp_path: Path, namespaces: Kind) -> None:
    with (tmp_path / "huge").open("wb") as handle:
        handle.truncate(200 << 30)
        handle.seek(200 << 30)
        handle.write(b"end")
    _, said = shell(
        f"tail -c 3 {tmp_path}/huge; df --output=used -k {tmp_path} | tail -1", namespaces, tmp_path / "x"
    )
    assert said.startswith("end") and int(said[3:]) < 100_000, said


def test_the_system_is_out_of_reach(tmp_path: Path, namespaces: Kind) -> None:
    work = (
        "umount /tmp; mount -t tmpfs none /tmp; echo x > /proc/sys/kernel/core_pattern; ls /dev; "
        "ls -d /proc/[0-9]* | wc -l; cat /proc/net/dev | tail -n +3 | cut -d: -f1; kill -9 1; echo alive"
    )
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    _, said = shell(work, namespaces, tmp_path / "x")
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    assert said.endswith("lo\nalive\n"), said
    assert not {"sda", "vda", "mem", "kmsg", "log", "mqueue"} & set(said.split())


# Run where there are mounts of all sorts: read-only ones, files, folders beside files.
MOUNTS = """
    import subprocess, sys
    from pathlib import Path
    from stayfinite.sandbox import process

    base = Path(sys.argv[1])
    for name in ("disk", "disk/inner", "locked", "x"):
        (base / name).mkdir(exist_ok=True)
    (base / "single").write_text("single")
    (base / "beside").write_text("beside")

    def mount(*arguments):
        subprocess.run(["mount", *arguments], check=True)

    mount("-t", "tmpfs", "none", base / "disk")
    (base / "disk/inner").mkdir()
    (base / "disk/file").write_text("file")
    mount("-t", "tmpfs", "none", base / "disk/inner")
    (base / "disk/inner/deep").write_text("deep")
    mount("-t", "tmpfs", "none", base / "locked")
    (base / "locked/fixed").write_text("fixed")
    mount("-o", "remount,ro", base / "locked")
    mount("--bind", base / "single", base / "beside")
    work = (
        f"cd {base}; exec > x/said 2>&1; cat disk/file disk/inner/deep locked/fixed beside single; echo;"
        "for f in disk/file disk/inner/deep locked/fixed beside single; "
        "do echo X > $f && echo ok $f || echo no $f; done"
    )
    done = process.run(["sh", "-c", work], "namespaces", 30, exchange=base / "x")
    print(done, (base / "x/said").read_text())
    for name in ("disk/file", "disk/inner/deep", "locked/fixed", "beside", "single"):
        assert (base / name).read_text() == Path(name if name != "beside" else "single").name, name
"""


def test_mounts_of_all_sorts(tmp_path: Path, namespaces: Kind) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-c",
        textwrap.dedent(MOUNTS),
    ]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "filedeepfixedsinglesingle" in done.stdout
    for name in ("disk/file", "disk/inner/deep", "single"):
        assert f"ok {name}" in done.stdout, done.stdout
    assert "no locked/fixed" in done.stdout  # read-only for the script as it was before


def test_an_ordinary_user_has_the_same(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or python is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, setpriv and a python of the system")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    code = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from stayfinite.sandbox import process
        from stayfinite.sandbox.fork import forked
        os.chdir(sys.argv[2])
        open("mine", "w").write("mine")
        for kind in ("namespaces", "landlock"):
            done = process.run(["sh", "-c", "id -u; rm -f mine; echo x > new; exit 7"], kind, 30)
            print(kind, done.status, done.exit_code, sorted(os.listdir(".")))
        done = forked(lambda: [os.remove("mine"), os.listdir("."), os.getuid()], 30)
        print(done.value, sorted(os.listdir(".")))
    """
    folder = Path("/tmp") / f"stayfinite-nobody-{os.getpid()}"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    try:
        done = subprocess.run(
            [*nobody, python, "-c", textwrap.dedent(code), SOURCE, str(folder)],
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(folder)
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip("an ordinary user may not read this project")
    assert done.stdout.splitlines() == [
        "namespaces finished 7 ['mine']",
        "landlock finished 7 ['mine']",
        "[None, [], 65534] ['mine']",
    ], done.stderr
