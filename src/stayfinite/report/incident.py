"""The one-screen report of an incident: what happened, where it was born, why, what to do and what not to do."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from stayfinite.findings import Birth, Finding, Incident, PathStep, TensorSummary, find_rule
from stayfinite.findings.incident import listed_samples
from stayfinite.report.terminal import console
from stayfinite.report.text import as_typed

_AROUND = 2  # lines of source before and after the one that is marked
_INPUTS, _STEPS, _OTHERS = 5, 6, 2  # a batch norm in evaluation reads five
_CHANGED_SHOWN = 8
_HELD = ("parameter", "buffer", "state", "gradient")  # they were bad before the op read them
_CAME_IN = ("outside", "aten.lift_fresh.default")
_ARRIVED = {
    "loss": "the loss is not finite",
    "gradient": "a gradient is not finite",
    "parameter": "the state of the training is wrong",
    "spike": "a gradient is enormous",
    "exception": "an error was raised",
}


def print_report(
    incidents: Sequence[Incident], remarks: Sequence[str], *, files: Sequence[Path] = (), shown: int = 3
) -> None:
    """Print the incidents to stderr; nothing at all on a healthy run."""
    out = console(stderr=True)
    for incident in incidents[:shown]:
        for line in lines(incident):
            out.print(line)
    if len(incidents) > shown:
        out.print(Text(f"and {len(incidents) - shown} more incidents"))
    for remark in remarks:
        out.print(Text(f"stayfinite: {remark}"))
    if incidents and files:
        out.print(Text("Files    " + ", ".join(str(path) for path in files)))


def lines(incident: Incident) -> Iterator[Text]:
    """The report, line by line."""
    errors = any(finding.severity.value == "error" for finding in incident.findings)
    what = arrived(
        incident.trigger,
        incident.phase,
        [finding.code for finding in incident.findings],
        born=incident.birth is not None,
    )
    again = ", not seen again in a second run" if incident.reproduced is False else ""
    on = f" on rank {incident.rank}" if incident.world_size > 1 and incident.rank is not None else ""
    step = "" if incident.uncounted else f"step {incident.step}: "  # steps are those of optimizers
    title = f"stayfinite  {step}{what}{on} ({incident.phase}{again})"
    if incident.whole_run:
        steps = "1 step" if incident.step == 1 else f"{incident.step} steps"
        title = f"stayfinite  the whole run ({steps}): " + (
            "it went wrong without a bad value"
            if errors
            else "no value is bad, but something is worth a look"
        )
    yield Text(title, style="bold red" if errors else "bold")
    if incident.birth is not None:
        yield from _birth(incident.birth)
    elif incident.not_located:
        yield Text(f"Where    not located: {incident.not_located}")
    if incident.path:
        yield Text("Path     " + _path(incident.path))
    yield from _watched(incident.observed)
    yield from _findings(incident.findings, incident.birth)
    yield from _proof(incident)
    yield Text("")


def arrived(trigger: str, phase: str, codes: Sequence[str], *, born: bool = False) -> str:
    """What the run saw, in words; `born`: an operation is known that made a bad value."""
    if trigger == "gradient" and "RUN020" in codes:
        return "the gradient norm is not finite"
    if trigger == "parameter" and phase == "optimizer":
        return "the optimizer's update is not finite"
    if trigger == "parameter" and born and phase != "state":
        return "weights or state are not finite"
    return _ARRIVED.get(trigger, trigger)


def _birth(birth: Birth) -> Iterator[Text]:
    if birth.file is not None and birth.line is not None:
        inside = f", in {birth.function}" if birth.function and birth.function != "<module>" else ""
        module = f", module {birth.module}" if birth.module else ""
        # a line that stands for an update or a setting, not for an op
        word = "Born at" if birth.op and birth.kind != "finite" else "Where  "
        yield Text(f"{word}  {as_typed(birth.file)}:{birth.line}{inside}{module}", style="bold")
        yield from _excerpt(birth.file, birth.line)
    if birth.numel:
        first = f", first at {list(birth.first_index)}" if birth.first_index else ""
        samples = f", samples {listed_samples(birth.samples, 8)}" if birth.samples else ""
        yield Text(
            f"         {_maker(birth)} {birth.nan} NaN and {birth.inf} Inf in {birth.numel} "
            f"{birth.dtype} values{first}{samples}"
        )
    for tensor in birth.inputs[:_INPUTS]:
        yield Text(f"         {_values(tensor)}")


def _maker(birth: Birth) -> str:
    """What gave the value; a tensor that no op made came in from outside: from numpy, a literal, a file. It may be
    that only an op which reads it was seen."""
    if birth.op == "batch":
        return "the batch holds"
    if birth.op == "outside" and birth.call != birth.op:
        return f"what {birth.call} was given holds"
    if birth.op in _HELD:
        return f"the {birth.op} that {birth.call} was given holds"
    if birth.call != birth.op:
        return f"{birth.call} ({birth.op}) gave"
    return "what came in here from outside of torch holds" if birth.op in _CAME_IN else f"{birth.op} gave"


def _excerpt(file: str, line: int) -> Iterator[Text]:
    for number in range(max(1, line - _AROUND), line + _AROUND + 1):
        source = linecache.getline(file, number).rstrip("\n")
        if source or number == line:
            here = number == line
            yield Text(
                f"  {'>' if here else ' '} {number:4d} | {source}", style="bold yellow" if here else "dim"
            )


def _elsewhere(finding: Finding, birth: Birth | None) -> str:
    """The line of a cause that is not the line where the value was born: a load, a batch."""
    if finding.file is None or finding.line is None:
        return ""
    if birth is not None and (birth.file, birth.line) == (finding.file, finding.line):
        return ""
    return f" ({as_typed(finding.file)}:{finding.line})"


def _values(tensor: TensorSummary) -> str:
    shape = "x".join(str(size) for size in tensor.shape) or "scalar"
    span = (
        f"{tensor.min:.4g} .. {tensor.max:.4g}"
        if tensor.min is not None and tensor.max is not None
        else "no finite value"
    )
    counts = [
        f"{n} {what}" for n, what in ((tensor.zeros, "zeros"), (tensor.nan, "NaN"), (tensor.inf, "Inf")) if n
    ]
    return f"{tensor.name}: {tensor.dtype} {shape}, {span}" + (f", {', '.join(counts)}" if counts else "")


def _watched(observed: Sequence[TensorSummary]) -> Iterator[Text]:
    """Of the tensors a user observes: the first that is bad, and the last before it that was not."""
    bad = next((i for i, tensor in enumerate(observed) if tensor.nan or tensor.inf), None)
    if bad is not None:
        around = observed[max(0, bad - 1) : bad + 1]
        yield from (Text(f"Watched  {_values(tensor)}") for tensor in around)


def _path(path: Sequence[PathStep]) -> str:
    names = [f"{step.op.removeprefix('aten.').split('.')[0]}:{step.line}" for step in path]
    if len(names) > _STEPS:
        names = [*names[: _STEPS // 2], "...", *names[-(_STEPS // 2) :]]
    return " -> ".join(names)


def _proof(incident: Incident) -> Iterator[Text]:
    """What was tried on the replay: the best that works, its change, and the popular ones that do not."""
    best = next((one for one in incident.tried if one.proved and not one.control), None)
    if best is not None:
        moved = ""
        if best.distortion is not None:
            far = "unchanged" if best.distortion < 1e-5 else f"moved by {best.distortion:.1g} of their size"
            moved = f"; healthy values {far}"
        further = ""
        if best.steps:
            further = ", and the next one" if best.steps == 1 else f", and the next {best.steps}"
        yield Text(f"Proved   {best.remedy}: {best.sentence}", style="bold green")
        yield Text(f"         this step is finite with it{further}{moved}")
        other = next((one for one in incident.tried if one.remedy == incident.patched_by), None)
        if other is not None:
            yield Text(f"Also     proved, as a change of the source: {other.remedy}: {other.sentence}")
        yield from _change(incident.patch)
    for other in [one for one in incident.tried if one.verdict == "postpones"][:1]:
        yield Text(f"         {other.remedy}: {other.reason}", style="dim")
    failed = [one for one in incident.tried if one.popular and not one.proved]
    if failed:
        by_reason: dict[str, list[str]] = {}
        for one in failed[:3]:
            by_reason.setdefault(one.reason, []).append(one.remedy)
        yield Text("Failed   " + "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items()))
    if incident.proof_remark:
        yield Text(f"Proof    {incident.proof_remark}")


def _change(patch: str | None) -> Iterator[Text]:
    changed = [
        line for line in (patch or "").splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    for line in changed[:_CHANGED_SHOWN]:
        yield Text(f"         {line}", style="green" if line.startswith("+") else "dim")


def _findings(findings: Sequence[Finding], birth: Birth | None) -> Iterator[Text]:
    if not findings:
        yield Text("Why      no rule explains it")
        return
    first = findings[0]
    yield Text(f"Why      {first.code} {first.name}: {first.message}{_elsewhere(first, birth)}")
    yield Text(f"Do       {first.fix}", style="green")
    rule = find_rule(first.code)
    popular = first.avoid or (
        rule.section("The popular fix that does not work") if rule is not None else None
    )
    if popular:
        yield Text("Do not   " + popular.replace("\n", " "))
    for other in findings[1 : 1 + _OTHERS]:
        yield Text(f"Also     {other.code} {other.name}: {other.message}", style="dim")
    yield Text(f"More     stayfinite explain {first.code}", style="dim")
