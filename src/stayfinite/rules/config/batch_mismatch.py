"""CFG014: batch sizes and accumulation that do not multiply, or differ between files."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigSet
from stayfinite.rules.config.phrases import at, shown


class EffectiveBatchMismatch(Rule[ConfigSet]):
    """Batch size, micro-batch and accumulation do not multiply, or differ between the files of one run.

    ## What it finds
    train_batch_size that is not micro-batch x accumulation (x a whole number of devices), and an
    accumulation or batch that differs between the trainer's file and DeepSpeed's or Accelerate's.

    ## Why it is bad
    The effective batch is not the one the rate was chosen for: twice the accumulation is half the number of
    updates with gradients averaged over twice the samples, or, where the loss is not divided, gradients
    twice as large.

    ## Example
    `gradient_accumulation_steps: 4` in the trainer's file and `1` in DeepSpeed's

    ## The fix
    One place for each number; "auto" in DeepSpeed's file. Divide the loss by the accumulation.

    ## The popular fix that does not work
    Scaling the learning rate until the curve looks right.

    ## References
    DeepSpeed documentation: train_batch_size = micro-batch x accumulation x GPUs
    """

    code = "CFG014"
    name = "effective-batch-mismatch"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigSet) -> Iterator[Finding]:
        for config in subject.configs:
            total = config.first("train_batch_size", "global_batch_size")
            micro = config.first(
                "train_micro_batch_size_per_gpu", "micro_batch_size", "per_device_train_batch_size"
            )
            steps = config.first(
                "gradient_accumulation_steps", "accumulation_steps", "accumulation", "accumulate_grad_batches"
            )
            numbers = [entry.number if entry is not None else None for entry in (total, micro, steps)]
            if total is None or None in numbers or not numbers[1] or not numbers[2]:
                continue
            if numbers[0] and numbers[0] % (numbers[1] * numbers[2]):
                yield self.finding(
                    f"{shown(total)} is no multiple of {numbers[1]:g} x {numbers[2]:g}",
                    fix="train batch = micro-batch x accumulation x devices",
                    evidence={"total": numbers[0], "micro": numbers[1], "accumulation": numbers[2]},
                    **at(total),
                )
        words = ("gradient_accumulation_steps", "accumulation_steps", "accumulate_grad_batches")
        set_to = [
            (c, e)
            for c in subject.configs
            for e in [c.first(*words)]
            if e is not None and e.number is not None
        ]
        for config, entry in set_to:
            other = next(
                (
                    e
                    for c, e in set_to
                    if c.kind != config.kind
                    and c.kind in ("deepspeed", "accelerate")
                    and e.number != entry.number
                ),
                None,
            )
            if other is not None:
                yield self.finding(
                    f"{shown(entry)}, but {other.file}:{other.line} says {shown(other)}",
                    fix='one place for it; "auto" in the launcher\'s file',
                    evidence={"here": entry.number, "there": other.number},
                    **at(entry),
                )
