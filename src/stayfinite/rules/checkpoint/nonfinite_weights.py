"""CKP001: a weight that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.nonfinite import report


class NonfiniteWeights(Rule[Checkpoint]):
    """A weight in the checkpoint is NaN or infinite, so every run that starts from it is lost.

    ## What it finds
    Weights with NaN or Inf: how many, which share, the first index. An attention mask (zeros and -inf only) is
    infinite on purpose and is left alone.

    ## Why it is bad
    One NaN in a weight makes every output that depends on it NaN, the loss NaN, and after one optimizer step all
    weights NaN. No learning rate brings it back.

    ## Example
        torch.save(model.state_dict(), "last.pt")   # after a step whose gradient was NaN

    ## The fix
    Go back to the newest healthy checkpoint (`stayfinite scan DIR --last-good`), or replace the poisoned tensors
    with their moments from it (`stayfinite scan BAD --repair OUT --from GOOD`). Then find out why it happened: the
    same step will come again.

    ## The popular fix that does not work
    `torch.nan_to_num` on the weights: zeros in their place are not what was learnt, and the moments of the
    optimizer still hold the NaN, so the next step writes it back.

    ## References
    pytorch/pytorch#46849, ultralytics/ultralytics#24615
    """

    code = "CKP001"
    name = "nonfinite-weights"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        fix = (
            "do not train from this checkpoint; take the newest healthy one (stayfinite scan DIR --last-good)"
        )
        yield from report(self, subject, "the weight", fix, Kind.WEIGHTS)
