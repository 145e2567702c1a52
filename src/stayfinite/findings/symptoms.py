"""Symptoms: what people see, the causes to check in order, and the command that checks each. Plain data."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspect:
    """One thing to check: why, which rules say so, and the command that shows it."""

    what: str
    codes: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is seen; `words` are other ways to say it."""

    name: str
    title: str
    words: tuple[str, ...]
    suspects: tuple[Suspect, ...]


_RUN = "stayfinite run train.py"
_SCAN = "stayfinite scan CHECKPOINT"
_LOGS = "stayfinite logs LOG"
_DATA = "stayfinite data DATA"

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "few-batches",
        "NaN in a few batches only; the others are fine",
        ("some batches", "sporadic", "random", "now and then", "intermittent"),
        (
            Suspect("samples that hold NaN or Inf, or are far out of scale", ("DAT020", "DAT021"), _DATA),
            Suspect(
                "samples whose labels are all ignored, or outside the classes",
                ("DAT027", "DAT028"),
                f"{_DATA} --classes N",
            ),
            Suspect("constant samples that are divided by their own range", ("DAT023", "DAT012"), _DATA),
            Suspect(
                "a mean, mask or softmax over nothing in those batches", ("NUM005", "NUM006", "NUM008"), _RUN
            ),
            Suspect("CTC samples with too few frames; boxes without area", ("DAT030", "DAT029"), _DATA),
            Suspect("a GradScaler looking for its scale, which is harmless", ("LOG006", "STA010"), _LOGS),
        ),
    ),
    Symptom(
        "sudden-jump",
        "the loss is calm for a long time, then jumps or becomes NaN within a step",
        ("spike", "suddenly", "explodes", "blow up", "out of nowhere"),
        (
            Suspect(
                "what came before: a ramp of the norm, the learning rate at its peak",
                ("LOG003", "LOG007"),
                _LOGS,
            ),
            Suspect("one batch that stands out", ("RUN001", "LOG005", "DAT021"), _RUN),
            Suspect(
                "a value that grew until it passed the range of float16 or float32",
                ("NUM021", "NUM025"),
                _RUN,
            ),
            Suspect("the second moment lagging behind: updates doubled before", ("LOG004",), _LOGS),
            Suspect(
                "checkpoints that were close to the limit before",
                ("CKP006", "CKP007"),
                "stayfinite scan RUN --last-good",
            ),
        ),
    ),
    Symptom(
        "certain-heads",
        "only some heads, experts or loss components become NaN",
        ("one head", "some heads", "specific heads", "experts", "one component", "one term"),
        (
            Suspect("a component that is not finite before the total is", ("LOG001",), _LOGS),
            Suspect(
                "the gradient of a root or power below one at zero, in confident heads", ("NUM017",), _RUN
            ),
            Suspect("the logarithm of a probability that underflowed to zero", ("NUM001", "NUM022"), _RUN),
            Suspect(
                "a head without samples: a mean or weight normalisation over nothing",
                ("NUM005", "NUM006"),
                _RUN,
            ),
            Suspect("weights of one head that differ from their siblings", ("CKP001", "CKP008"), _SCAN),
        ),
    ),
    Symptom(
        "first-batch",
        "NaN or Inf in the very first step",
        ("first step", "step 0", "step 1", "from the start", "immediately", "at once"),
        (
            Suspect("parameters or buffers that nobody initialised", ("STA001", "STA002", "NUM016"), _RUN),
            Suspect(
                "an eps that is zero in half precision, an optimizer that divides by it",
                ("STA003", "STA021", "STA012"),
                _RUN,
            ),
            Suspect("raw, constant or non-finite inputs", ("DAT020", "DAT021", "DAT022"), _DATA),
            Suspect("labels outside the classes", ("DAT028",), f"{_DATA} --classes N"),
            Suspect("a mask that overflows, or masks every position", ("NUM008", "NUM009", "NUM010"), _RUN),
            Suspect("pretrained weights that are damaged or not finite", ("CKP001", "CKP020"), _SCAN),
        ),
    ),
    Symptom(
        "after-resume",
        "the run was fine, and fails or jumps after it was resumed",
        ("resume", "restart", "checkpoint", "continued", "reload"),
        (
            Suspect(
                "the checkpoint itself: NaN, missing parts, a collapsed scale",
                ("CKP001", "CKP014", "CKP013"),
                _SCAN,
            ),
            Suspect(
                "moments, scaler or schedule that were not restored", ("STA030", "STA029", "STA035"), _RUN
            ),
            Suspect(
                "the learning rate: old peak from the checkpoint, or started over",
                ("CKP022", "STA027", "STA036"),
                f"{_SCAN} --config CONFIG",
            ),
            Suspect("where the log shows the jump", ("LOG008",), _LOGS),
            Suspect("averages (EMA) that do not belong to the weights", ("CKP004", "CKP019"), _SCAN),
        ),
    ),
    Symptom(
        "loss-zero",
        "the loss is exactly 0.0, or does not change by a digit",
        ("0.0", "zero loss", "loss 0", "frozen", "constant loss", "stuck", "does not change"),
        (
            Suspect("a logger that leaves NaN out of its average", ("LOG009", "LOG014"), _LOGS),
            Suspect("every step skipped, while the run seems to go on", ("LOG012", "LOG006"), _LOGS),
            Suspect(
                "gradients that vanish behind nan_to_num, clamps or a branch", ("RUN016", "NUM018"), _RUN
            ),
            Suspect(
                "a learning rate of zero, or a warm-up that does not end",
                ("RUN015", "RUN011", "LOG010"),
                _RUN,
            ),
            Suspect("updates lost to rounding in half precision", ("STA022",), _RUN),
            Suspect("labels that are all ignored", ("DAT027",), _DATA),
        ),
    ),
    Symptom(
        "exclamation-marks",
        'a language model that only writes "!!!!", or one token for ever',
        ("!!!!", "!!!", "garbage output", "one token", "repeats", "gibberish"),
        (
            Suspect('weights that are NaN: token 0 (often "!") wins every comparison', ("CKP001",), _SCAN),
            Suspect("weights that overflow when they are cast to float16", ("CKP006",), _SCAN),
            Suspect("a run that failed long before this checkpoint, unseen", ("LOG001", "LOG009"), _LOGS),
            Suspect("a damaged or half-copied file, a missing shard", ("CKP020", "CKP016"), _SCAN),
            Suspect("activations beyond float16: run in bfloat16 and compare", ("NUM021",), _RUN),
        ),
    ),
    Symptom(
        "low-temperature",
        "NaN when a temperature, bandwidth or eps becomes small",
        ("temperature", "sharp", "confident", "contrastive", "distillation", "sinkhorn"),
        (
            Suspect("an exponential that overflows: subtract the maximum first", ("NUM003", "NUM004"), _RUN),
            Suspect("the logarithm of a softmax that underflowed: log_softmax instead", ("NUM001",), _RUN),
            Suspect("the gradient of a power below one at zero", ("NUM017",), _RUN),
            Suspect("an eps that is zero in half precision", ("NUM022", "STA003"), _RUN),
        ),
    ),
    Symptom(
        "norm-nan",
        "the loss is finite and the gradient norm is NaN or Inf",
        ("gradient norm", "grad norm", "grad_norm", "backward", "nan gradients"),
        (
            Suspect("since when, and whether a loss scale explains it", ("LOG002", "LOG006"), _LOGS),
            Suspect(
                "a gradient that is infinite where the forward is fine: roots, powers, norms at zero",
                ("NUM017", "NUM014"),
                _RUN,
            ),
            Suspect("a bad value in the branch that `where` does not take", ("NUM018",), _RUN),
            Suspect("clipping before unscale_, or by a norm that is not finite", ("STA008", "STA025"), _RUN),
        ),
    ),
    Symptom(
        "one-machine",
        "it fails on one machine, rank or version, and not on another",
        ("one gpu", "one rank", "not reproducible", "different machine", "version", "ddp"),
        (
            Suspect("replicas that drift apart, ranks that decide differently", ("DST001", "CKP018"), _RUN),
            Suspect("a failure that does not repeat on the same inputs", ("RUN013",), _RUN),
            Suspect(
                "a version that is known for NaN on this kind of device",
                ("ENV001", "ENV002"),
                "stayfinite explain ENV001",
            ),
            Suspect("uninitialised memory, which differs from run to run", ("NUM016", "CKP009"), _RUN),
            Suspect("data that is damaged on that machine", ("DAT031",), _DATA),
        ),
    ),
)


def find_symptom(text: str) -> Symptom | None:
    """The symptom with this name, or whose words are in the text, or whose name is close to it."""
    wanted = text.strip().lower()
    dashed = wanted.replace(" ", "-").replace("_", "-")
    for symptom in SYMPTOMS:
        if symptom.name == dashed:
            return symptom
    for symptom in SYMPTOMS:
        if any(word in wanted for word in symptom.words) or (wanted and wanted in symptom.title.lower()):
            return symptom
    close = difflib.get_close_matches(dashed, [symptom.name for symptom in SYMPTOMS], n=1)
    return next((symptom for symptom in SYMPTOMS if symptom.name in close), None)
