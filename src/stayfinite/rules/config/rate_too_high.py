"""CFG005: a learning rate far above what optimizer, task and batch suggest."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import RATES, at, optimizer_of, shown


class RateFarTooHigh(Rule[ConfigFile]):
    """A learning rate lies far above what the optimizer and the task suggest.

    ## What it finds
    Adam-like optimizers above 1e-2 (torch's default is 1e-3), fine-tuning with the Hugging Face trainer
    above 1e-3 (its default is 5e-5; LoRA above 1e-2), SGD above 1.0 times batch/256 (Goyal et al.: 0.1 for
    a batch of 256). The optimizer is taken from the configuration; without a sign of it nothing is said.
    Ceilings: `adam-rate-ceiling`, `finetune-rate-ceiling`, `sgd-rate-ceiling`.

    ## Why it is bad
    Adam moves every weight by about the rate in each step, however small the gradient: at 0.1 a weight of
    0.02 is replaced five times over in one step.

    ## Example
    `learning_rate: 0.1` with AdamW

    ## The fix
    Start from the optimizer's usual rate, warm up, and raise it while the loss follows.

    ## The popular fix that does not work
    Gradient clipping: Adam divides by the gradient's own size, so a clipped gradient gives the same step.

    ## References
    torch.optim defaults; Goyal et al. 2017 (linear scaling, 0.1 per 256); transformers TrainingArguments
    (5e-5)
    """

    code = "CFG005"
    name = "rate-far-too-high"
    cause = "LR_DIVERGENCE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        optimizer = optimizer_of(subject)
        if not optimizer:
            return
        lora = any("lora" in entry.word for entry in subject.entries)
        for entry in subject.find(*RATES):
            rate = entry.number
            if rate is None or not math.isfinite(rate):
                continue
            if "sgd" in optimizer:
                batch = subject.beside(entry, "batch_size", "batch", "train_batch_size")
                size = batch.number if batch is not None and batch.number else 256.0
                ceiling = subject.threshold("sgd-rate-ceiling", 1.0) * max(1.0, size / 256)
            elif subject.kind == "huggingface" and not lora:
                ceiling = subject.threshold("finetune-rate-ceiling", 1e-3)
            elif (
                any(known in optimizer for known in ("adam", "lamb", "lion", "rmsprop"))
                and "adafactor" not in optimizer
            ):
                ceiling = subject.threshold("adam-rate-ceiling", 1e-2)
            else:
                continue
            if rate > ceiling:
                yield self.finding(
                    f"{shown(entry)} is {rate / ceiling:.3g} times the ceiling of "
                    f"{ceiling:g} for {optimizer}",
                    fix=f"start at {ceiling / 10:g} or below, with warm-up, and raise it while "
                    "the loss follows",
                    evidence={"key": entry.name, "rate": rate, "ceiling": ceiling, "optimizer": optimizer},
                    **at(entry),
                )
