"""PRJ002: configuration, launcher, source, log and checkpoint name different precisions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.project import PrecisionClaim, Project


class PrecisionDiffers(Rule[Project]):
    """Two places of a project name different precisions for one run.

    ## What it finds
    A configuration, a launcher's command line, an `autocast` with a written dtype, a log (what the framework printed, a
    loss scale that moves) or the dtype of saved weights, two of which do not agree. Settings that nothing reads are
    left out. What one configuration says to itself is rule CFG003.

    ## Why it is bad
    Only one of them acts. float16 without the scaler that the other place would have brought overflows at 65504, and
    whoever looks into the configuration sees bfloat16.

    ## Example
    `mixed_precision: bf16` in config.yaml, `accelerate launch --mixed_precision fp16` in run.sh

    ## The fix
    Name the precision in one place, and print what acts: `torch.get_autocast_dtype("cuda")`, whether a scaler is on.

    ## The popular fix that does not work
    Writing the same word into a third place.

    ## References
    Accelerate: --mixed_precision takes the place of the file's; torch.amp.autocast (default dtype)
    """

    code = "PRJ002"
    name = "precision-differs-between-places"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Project) -> Iterator[Finding]:
        told: set[frozenset[tuple[str, int | None]]] = set()
        for claims in [run.precisions for run in subject.runs] or [subject.precisions]:
            for one, other in combinations([claim for claim in claims if claim.acts], 2):
                places = frozenset(((one.file, one.line), (other.file, other.line)))
                if not _contradict(one, other) or places in told:
                    continue
                told.add(places)
                yield self.finding(
                    f"the {one.origin} says {one.precision} ({one.words}), the {other.origin} {other.precision} "
                    f"({other.words}, {_place(other)})",
                    fix="name the precision in one place, and print at the start what acts: the dtype of autocast, and "
                    "whether a GradScaler is on",
                    evidence={one.origin: one.precision, other.origin: other.precision},
                    file=one.file,
                    line=one.line,
                )
                break  # one sentence a run: the table has the rest


def _contradict(one: PrecisionClaim, other: PrecisionClaim) -> bool:
    if one.precision == other.precision or one.origin == other.origin:
        return False
    # Weights in float32 go with every kind of mixed precision.
    weights = next((claim for claim in (one, other) if claim.origin == "checkpoint"), None)
    return weights is None or weights.precision != "fp32"


def _place(claim: PrecisionClaim) -> str:
    return f"{claim.file}:{claim.line}" if claim.line else claim.file
