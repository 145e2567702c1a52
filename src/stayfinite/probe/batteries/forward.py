"""Forward: the model as it is initialised, in training and in evaluation mode."""

from __future__ import annotations

from stayfinite.findings.subjects.probed_model import Trial
from stayfinite.probe.batteries import Battery
from stayfinite.probe.lab import Lab, said, shown_range
from stayfinite.probe.one_run import Run
from stayfinite.probe.record import Record
from stayfinite.watch.finite import nonfinite


class ForwardBattery(Battery):
    """Is every output finite, in both modes?"""

    order = 1
    name = "forward"
    title = "forward pass"
    needs_finite_step = False

    def run(self, lab: Lab, record: Record) -> None:
        initial = nonfinite([*lab.parts.model.named_parameters(), *lab.parts.model.named_buffers()])
        # Buffers that are infinite are so on purpose: masks, running minima.
        bad = [summary for summary in initial if summary.nan or summary.name in _parameters(lab)]
        if bad:
            what = f"{bad[0].name} is not finite as it is initialised ({bad[0].nan} NaN, {bad[0].inf} Inf)"
            record.trials.append(Trial(self.name, "initial weights", "parameter", what))
        for training in (True, False):
            mode = "training mode" if training else "evaluation mode"
            run = lab.run(training=training, backward=False)
            record.trials.append(self._trial(lab, run, mode, training))
            if run.error is None and run.outputs:
                shown = "; ".join(f"{n.removeprefix('output')}{' ' if n != 'output' else ''}{shown_range(n, t)}"
                                  for n, t in run.outputs[:3])  # fmt: skip
                record.note(self.name, f"{mode}: output {shown}")

    def _trial(self, lab: Lab, run: Run, mode: str, training: bool) -> Trial:
        if run.error is not None:
            return Trial(self.name, mode, "output", f"it raised {said(run.error)}",
                         located=lab.locate(training=training, backward=False))  # fmt: skip
        bad = [summary for summary in nonfinite(run.outputs) if summary.nan or summary.inf]
        # an infinite output may be meant: a mask in the logits
        if bad and (bad[0].nan or run.bad is not None):
            what = f"{bad[0].name} holds {bad[0].nan} NaN and {bad[0].inf} Inf"
            return Trial(
                self.name, mode, "output", what, located=lab.locate(training=training, backward=False)
            )
        return Trial(self.name, mode, "finite")


def _parameters(lab: Lab) -> set[str]:
    return {name for name, _ in lab.parts.model.named_parameters()}
