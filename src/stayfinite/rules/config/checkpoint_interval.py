"""CFG015: a checkpoint or evaluation interval longer than the run."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import EPOCHS, STEPS, at, place, shown

BY_STEPS = ("save_steps", "checkpoint_every", "save_every", "checkpoint_interval", "save_interval", "ckpt_interval",
            "evaluate_every", "eval_steps", "eval_interval", "save_every_n_steps", "checkpointing_steps")  # fmt: skip
BY_EPOCHS = ("save_every_n_epochs", "save_epochs", "checkpoint_epochs", "check_val_every_n_epoch")


class CheckpointAfterTheEnd(Rule[ConfigFile]):
    """Checkpoints (or evaluations) come at an interval that is longer than the run.

    ## What it finds
    an interval in steps above the number of steps, or in epochs above the number of epochs.

    ## Why it is bad
    Nothing is saved before the end. The first failure costs the whole run, and there is no last good
    checkpoint to go back to.

    ## Example
    `save_steps: 5000` with `max_steps: 2000`

    ## The fix
    Several checkpoints a run, at least one an hour.

    ## The popular fix that does not work
    Saving at the end only, because checkpoints are large: keep fewer, not none.

    ## References
    ultralytics/ultralytics#24615
    """

    code = "CFG015"
    name = "checkpoint-after-the-end"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for words, totals in ((BY_STEPS, STEPS), (BY_EPOCHS, EPOCHS)):
            for entry in subject.find(*words):
                total = subject.beside(entry, *totals)
                if entry.number is None or total is None or total.number is None or total.number <= 0:
                    continue
                if entry.number > total.number:
                    yield self.finding(
                        f"{shown(entry)} is longer than the run, {shown(total)} ({place(total, entry)})",
                        fix="several checkpoints a run",
                        evidence={"interval": entry.number, "total": total.number},
                        **at(entry),
                    )
