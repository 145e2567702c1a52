"""STA037: a checkpoint that cannot be loaded because the file is not whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class FileNotWhole(Rule[FailedStep]):
    """`torch.load` failed because the file is no whole checkpoint, and nothing else was loaded in its place.

    ## What it finds
    A `torch.load` that raised, on a file which is empty, cut off, or damaged when it is read as plain data. A
    script that then loads another file has helped itself, and is not accused. Missing files, and whole files that
    a weights-only load refuses, are no damage.

    ## Why it is bad
    The file was written over in place and the disk was full, or the job was killed: the only checkpoint is gone.

    ## Example
    `torch.save(state, "last.pt")` each epoch, and a time limit that ends the job in the middle of it

    ## The fix
    Write to a temporary name, load it once to verify, then `os.replace` it; keep the checkpoint before it.

    ## The popular fix that does not work
    Catching the error and starting over: the run is lost all the same, and now nothing says so.

    ## References
    the error of torch.load for a zip that was cut off: "failed finding central directory"
    """

    code = "STA037"
    name = "file-not-whole"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.births:
            return  # a bad value is another failure
        for number, load in enumerate(subject.run.file_loads):
            if load.damage is None or any(
                later.damage is None for later in subject.run.file_loads[number + 1 :]
            ):
                continue
            yield self.finding(
                f"{PurePath(load.file).name} could not be loaded: {load.damage}",
                fix="save to a temporary name, verify it, os.replace it over the old one, and keep the one before",
                evidence={"file": load.file, "step": load.step},
                place=load.place,
            )
