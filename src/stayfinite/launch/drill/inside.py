"""The process inside the sandbox: `python -m stayfinite.launch.drill.inside SPEC`. Runs the script with its faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stayfinite.launch.drill.journal import Journal, parse


def main(arguments: list[str]) -> int:
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if spec["faults"] != ["kill while saving"]:
        return _in_it(spec, Journal(Path(spec["journal"])))
    if arguments[1:]:
        return _in_it(spec, Journal(int(arguments[1])))
    return _over_it(arguments[0], spec)


def _over_it(name: str, spec: dict[str, Any]) -> int:
    """Start the script, wait until it is killed, and look at its files before they are gone with the sandbox."""
    from stayfinite.launch.drill.saved_files import look, renamed
    from stayfinite.sandbox.process import python_module

    reading, writing = os.pipe()
    command = python_module("stayfinite.launch.drill.inside", name, str(writing))
    script = subprocess.Popen(command, pass_fds=(writing,))
    os.close(writing)
    told, journal = b"", Path(spec["journal"])
    with journal.open("ab") as file:  # as it comes: time may be over before the script is
        while piece := os.read(reading, 1 << 16):
            told += piece
            file.write(piece)
            file.flush()
    code = script.wait()
    lines = parse(told.decode())
    looked = {"files": look(lines, renames=spec["renames"]), "renamed": renamed(lines), "code": code}
    Journal(journal).write(looked=looked)
    return 0


def _in_it(spec: dict[str, Any], journal: Journal) -> int:
    from stayfinite import launch
    from stayfinite.launch.drill.driver import FaultDriver
    from stayfinite.launch.drill.save_kill import SaveKill

    fault: FaultDriver | SaveKill
    if spec["faults"] == ["kill while saving"]:
        fault = SaveKill(spec["kill_at"], journal)
    else:
        fault = FaultDriver(spec["faults"], spec["after"], journal)
    fault.install()
    options = launch.Options(
        target=spec["target"],
        arguments=tuple(spec["arguments"]),
        module=spec["module"],
        locate="off",
        policy=spec["policy"],
        clip=spec["clip"],
        run_dir=Path(spec["run_dir"]),
    )
    code = launch.run(options, lambda incidents, remarks, files: journal.write(remarks=remarks))
    fault.ended(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
