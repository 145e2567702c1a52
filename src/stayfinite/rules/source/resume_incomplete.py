"""SRC026: a resume that loads the scheduler or model but not all that goes with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at

_PART = re.compile(r"model|net|opt|sched|scaler|ema|student|teacher|encoder|decoder|critic|actor|policy|head")


class ResumeWithoutOptimizer(Rule[SourceFile]):
    """A resume loads the scheduler's state but not the optimizer's, or the optimizer's but not the scaler's.

    ## What it finds
    `scheduler.load_state_dict` in a file in which no optimizer loads its state; and a file that makes a
    GradScaler and loads the optimizer's state but never the scaler's.

    ## Why it is bad
    Adam then starts with empty moments at a late, possibly high rate: a loss jump. A fresh scaler starts at
    65536 and skips several steps until it fits again.

    ## Example
    `model.load_state_dict(ck["model"]); scheduler.load_state_dict(ck["scheduler"])`

    ## The fix
    Save and load all of it: model, optimizer, scheduler, scaler, averages, random states and the position
    in the data.

    ## The popular fix that does not work
    A new warm-up after each resume.

    ## References
    Lightning-AI/pytorch-lightning#10766, ultralytics/yolov5#292
    """

    code = "SRC026"
    name = "resume-without-optimizer"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        loads = [
            event for facts in subject.functions for event in facts.events if event.what == "load_state_dict"
        ]
        loaded = [event.subject.lower() for event in loads]
        has_optimizer = any(re.search("opt", name) and not re.search("sched", name) for name in loaded)
        if any(not re.fullmatch(r"[\w.]+", name) for name in loaded):
            return  # what is loaded is chosen at run time
        if "getattr" in subject.calls and not all(_PART.search(name) for name in loaded):
            return
        beside = {
            id(event)
            for facts in subject.functions
            for event in facts.events
            if any(e.what == "load_state_dict" and "sched" not in e.subject.lower() for e in facts.events)
        }
        for event in loads:
            if re.search(r"sched", event.subject.lower()) and not has_optimizer and id(event) in beside:
                yield self.finding(
                    f"{event.subject} gets its state back, but no optimizer does: its "
                    "moments start empty at a late rate",
                    fix="load the optimizer's state too, before the scheduler's",
                    evidence={"loaded": sorted(set(loaded))},
                    **at(subject, event),
                )
                return
        scalers = list(subject.named("GradScaler"))
        if not scalers or not has_optimizer or any("scaler" in name for name in loaded):
            return
        enabled = scalers[0].options.get("enabled")
        if enabled is not None and enabled.const is False:
            return
        first = next(event for event in loads if re.search("opt", event.subject.lower()))
        loaded_in = {f.name for f in subject.functions for event in f.events if event is first}
        if scalers[0].function not in ("", "__init__", *loaded_in):
            return  # a scaler of another function: another training
        yield self.finding(
            f"the optimizer's state is loaded (line {first.line}), the GradScaler's is not: "
            "it starts at 65536 again",
            fix="save scaler.state_dict() and load it on resume",
            evidence={"loaded": sorted(set(loaded))},
            **at(subject, scalers[0]),
        )
