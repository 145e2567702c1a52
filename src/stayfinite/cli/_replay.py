"""What `stayfinite replay` does, step by step."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stayfinite.findings import Incident


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    incident: Path
    script: Path | None
    factory: str | None
    float32: bool
    sample: int | None
    trace: bool
    apply_patch: bool
    test: Path | None
    limit: float


def replay(asked: Request) -> int:
    """Do it; gives the exit code."""
    from stayfinite.prove import capsule
    from stayfinite.prove.capsule_facts import missing
    from stayfinite.prove.patching import DoesNotApply

    folder = asked.incident if asked.incident.is_dir() else asked.incident.parent
    try:
        incident = Incident.from_json(json.loads((folder / "incident.json").read_text(encoding="utf-8")))
        kept = capsule.read(folder / "capsule")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise click.UsageError(f"{folder} holds no incident that can be read: {error}") from None
    except capsule.NotPlain as refused:
        raise click.UsageError(str(refused)) from None
    if (lacking := missing(kept.facts)) is not None:
        raise click.UsageError(f"{folder / 'capsule'} is damaged: {lacking!r} is missing")
    for difference in capsule.differences(kept.facts):
        click.echo(f"Differs  {difference}")
    try:
        if kept.kind == "step" and asked.factory is not None:
            return _replay_step(asked, incident, kept)
        return _replay_script(asked, incident, _script_of(asked, kept.facts))
    except (DoesNotApply, capsule.NotPlain) as reason:
        raise click.UsageError(str(reason)) from None


# -- a script --------------------------------------------------------------------------------------------


def _script_of(asked: Request, facts: dict[str, Any]) -> dict[str, Any]:
    """How the script was started that failed, under `stayfinite run` or with a guard of its own."""
    if facts["kind"] == "script":
        return facts
    started = facts.get("script")
    if isinstance(started, dict):
        return started
    wanted = facts.get("function", "module:function")
    raise click.UsageError(
        f"this step was made by {wanted}, in a process that was no script: --step MODULE:FUNCTION gives "
        "(model, loss function) to run it with"
        + (
            "; without that a patch could not be proved again, and none is written"
            if asked.apply_patch
            else ""
        )
    )


def _replay_script(asked: Request, incident: Incident, facts: dict[str, Any]) -> int:
    from stayfinite.launch.repeated import repeat

    script = str(asked.script) if asked.script is not None else None
    if asked.apply_patch:

        def proves() -> tuple[bool, str]:
            seen = repeat(facts, incident, asked.limit, script)
            if not seen.ran:
                return False, seen.reason
            return not seen.failures, _instead(seen)

        return _apply(asked, incident, facts, proves, "the patched script runs without a bad value")
    if asked.test is not None:
        _write_test(asked.test, incident, facts)
    seen = repeat(facts, incident, asked.limit, script)
    if not seen.ran:
        click.echo(f"Not run  {seen.reason}")
        return 1
    again = seen.has(incident)
    click.echo(
        "Reproduced: the same failure at the same line." if again else f"Not reproduced: {_instead(seen)}."
    )
    _show(seen.incidents[:1], asked)
    return 0 if again else 1


def _apply(
    asked: Request,
    incident: Incident,
    facts: dict[str, Any],
    proves: Callable[[], tuple[bool, str]],
    proved: str,
) -> int:
    """Write the patch, prove it on the patched source, take it back if it does not help."""
    from stayfinite.prove.patching import apply

    patched = apply(incident.patch or "", asked.script)
    if asked.test is not None:
        _write_test(asked.test, incident, facts)
    for one in patched:
        one.write()
    click.echo("Patched  " + ", ".join(f"{one.file} (as it was: {one.backup.name})" for one in patched))
    cured, why = False, "it was interrupted"
    try:
        cured, why = proves()
    finally:
        if not cured:
            for one in patched:
                one.take_back()
            click.echo(f"Taken back: {why}. The source is as it was.")
    if cured:
        click.echo(f"Proved again: {proved}.")
    return 0 if cured else 1


def _instead(seen: Any) -> str:
    births = [one.birth for one in seen.failures if one.birth is not None]
    if births:
        return f"it fails at {os.path.basename(births[0].file or '?')}:{births[0].line}"  # noqa: PTH119
    return seen.reason or "nothing failed"


def _write_test(path: Path, incident: Incident, facts: dict[str, Any]) -> None:
    from stayfinite.prove.written_test import test_of

    if path.exists():
        raise click.UsageError(f"{path} exists already and is not overwritten")
    text = incident.test
    if text is None:
        if "target" not in facts:
            raise click.UsageError(
                "no test can be written: the failing expression needs more than plain values"
            )
        why = incident.findings[0].message if incident.findings else "a bad value"
        text = test_of(facts, why, incident.birth.line if incident.birth is not None else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"Test     {path}")


def _show(incidents: list[Incident], asked: Request) -> None:
    from stayfinite.report.incident import print_report

    print_report(incidents, [])
    if asked.trace:
        for step in (step for one in incidents for step in one.path):
            click.echo(f"         {step.op}  {step.file}:{step.line}  {step.module or ''}".rstrip())


# -- a step ----------------------------------------------------------------------------------------------


def _replay_step(asked: Request, incident: Incident, kept: Any) -> int:
    if asked.apply_patch:

        def proves() -> tuple[bool, str]:
            failed = _step_again(asked, kept)  # nothing of the patched source was imported before
            born = failed.birth if failed is not None else None
            return (
                failed is None,
                f"the step still fails, at line {born.line}" if born is not None else "it fails",
            )

        return _apply(
            asked, incident, kept.facts, proves, "the step of the capsule is finite with the patched source"
        )
    if asked.test is not None:
        _write_test(asked.test, incident, kept.facts)
    failed = _step_again(asked, kept)
    if failed is None:
        click.echo("Not reproduced: the step is finite" + (" in float32." if asked.float32 else "."))
        return 1
    here, there = failed.birth, incident.birth
    same = here is not None and there is not None and (here.op, here.line) == (there.op, there.line)
    click.echo("Reproduced: the same failure at the same line." if same else "It fails, but elsewhere.")
    _show([failed], asked)
    return 0 if same or there is None else 1


def _step_again(asked: Request, kept: Any) -> Incident | None:
    from stayfinite.prove.step_replay import WrongFactory, step_again

    try:
        return step_again(kept, _imported(asked.factory or ""), float32=asked.float32, sample=asked.sample)
    except WrongFactory as wrong:
        raise click.UsageError(str(wrong)) from None


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    if not module or not function:
        raise click.UsageError(f"--step {name}: write it as MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise click.UsageError(f"--step {name}: {error}") from None
    if not callable(found):
        raise click.UsageError(f"--step {name}: {module} has no function {function}")
    return found
