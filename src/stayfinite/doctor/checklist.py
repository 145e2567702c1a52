"""Before a long run: the prevention list, each item checked against what the project holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stayfinite.doctor.examine import Examination
from stayfinite.doctor.project_view import ProjectView
from stayfinite.doctor.script import training_script
from stayfinite.findings import Finding, Severity
from stayfinite.findings.advice import CheckedItem, Status
from stayfinite.findings.subjects.log import Role
from stayfinite.findings.subjects.project import Project
from stayfinite.report.html.words import count

_MOST_PLACES = 4
_WARMUPS = (
    "warmup", "warmup_steps", "warmup_epochs", "warmup_ratio", "warmup_iters", "num_warmup_steps", "pct_start",
)  # fmt: skip
_STABLE = (
    "SRC001", "SRC002", "SRC005", "SRC006", "SRC007", "SRC008", "SRC009", "SRC010", "SRC011", "SRC012", "SRC013",
    "SRC014", "SRC027", "SRC031", "SRC032", "SRC034", "SRC038", "SRC039", "SRC040", "SRC042", "SRC044",
)  # fmt: skip
_EPS = ("SRC003", "SRC004", "CFG002", "CFG004")
_HALF = ("SRC029", "SRC030", "SRC019", "SRC021", "SRC033", "CFG010", "PRJ002", "CFG003")
_RATE = ("CFG001", "CFG005", "CFG006", "CFG009", "CFG018", "LOG013")
_BLIND = ("SRC015", "SRC016", "SRC017", "SRC018", "SRC024", "SRC037", "CFG016")
_RESUME = ("SRC026", "SRC041", "CKP014", "CKP022", "CKP023")


def check_list(found: Examination, project: Project, findings: Sequence[Finding]) -> list[CheckedItem]:
    """Ten items of prevention, then what the machine, the record and the way back need."""
    view = ProjectView(found, project, findings)
    return [check(view) for check in _ITEMS]


def _from_findings(title: str, bad: Sequence[Finding], good: str) -> CheckedItem:
    if not bad:
        return CheckedItem(title, Status.DONE, good)
    places = tuple(dict.fromkeys(f"{f.file}:{f.line}" if f.line else str(f.file) for f in bad))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return CheckedItem(title, Status.MISSING, f"{bad[0].code} {bad[0].message}{more}", places[:_MOST_PLACES])


def _no_source(title: str) -> CheckedItem:
    return CheckedItem(title, Status.UNKNOWN, "no Python source was found")


def _data(view: ProjectView) -> CheckedItem:
    title = "Data and caches are finite, in range, with legal labels"
    if not view.found.data:
        return CheckedItem(
            title, Status.UNKNOWN, "no data file here: stayfinite data FILE, stayfinite.data.check(loader)"
        )
    bad = [f for v in view.found.data for f in v.findings if f.severity is not Severity.INFO]
    return _from_findings(title, bad, f"{count(len(view.found.data), 'file')} examined")


def _precision(view: ProjectView) -> CheckedItem:
    title = "One precision, named once, and half precision only with its protection"
    bad = view.of(_HALF)
    if bad:
        return _from_findings(title, bad, "")
    claims = [claim for claim in view.project.precisions if claim.acts]
    half = [claim for claim in claims if claim.precision in ("fp16", "bf16")]
    if half:
        words = ", ".join(dict.fromkeys(f"{claim.precision} ({claim.origin})" for claim in half))
        places = tuple(f"{claim.file}:{claim.line}" for claim in half[:_MOST_PLACES])
        return CheckedItem(title, Status.DONE, words, places)
    if view.events("unscale") or any(source.uses_scaler for source in view.sources):
        return CheckedItem(
            title, Status.UNKNOWN, "a GradScaler is used; which precision acts is decided at run time"
        )
    if any(True for source in view.sources for _ in source.named("autocast")):
        return CheckedItem(title, Status.UNKNOWN, "autocast is used; its dtype is decided at run time")
    asked = view.values(r"^(torch\.)?(float16|bfloat16|fp16|bf16|half)$")
    if asked:
        where = tuple(asked[:_MOST_PLACES])
        return CheckedItem(
            title, Status.UNKNOWN, "half precision is asked for, and no source was seen to act on it", where
        )
    return CheckedItem(title, Status.NOT_APPLICABLE, "nothing asks for half precision")


def _eps(view: ProjectView) -> CheckedItem:
    title = "Every eps exists in its dtype, temperatures are above their floor"
    if not view.sources and not view.found.lint.configs:
        return _no_source(title)
    return _from_findings(title, view.of(_EPS), "no eps or temperature below its floor")


def _forms(view: ProjectView) -> CheckedItem:
    title = "Exact stable forms: no log, root, power, division or exp at its edge"
    if not view.sources:
        return _no_source(title)
    return _from_findings(title, view.of(_STABLE), f"{view.found.lint.sources} sources examined")


def _rate(view: ProjectView) -> CheckedItem:
    title = "A learning rate that suits the optimizer, with a warm-up"
    bad = view.of(_RATE)
    if bad:
        return _from_findings(title, bad, "")
    warm = view.setting(*_WARMUPS)
    warm += view.places(r"warm[-_]?up|OneCycleLR|LinearLR\(")
    if warm:
        return CheckedItem(
            title, Status.DONE, "no rate beyond its ceiling; a warm-up is there", tuple(warm[:_MOST_PLACES])
        )
    if not view.sources:
        return _no_source(title)
    return CheckedItem(title, Status.MISSING, "no warm-up in configuration or source")


def _clip(view: ProjectView) -> CheckedItem:
    title = "Gradients are clipped, after unscaling and before the step"
    bad = view.of(("SRC019", "SRC020"))
    bad += [f for f in view.findings if f.code == "CFG008"]  # a note, but then nothing is clipped
    if bad:
        return _from_findings(title, bad, "")
    clips = [f"{source.path}:{event.line}" for source, event in view.events("clip")]
    clips += view.setting(
        "max_grad_norm", "gradient_clip_val", "gradient_clipping", "clip_grad_norm", "grad_clip"
    )
    clips += view.places(r"clip_norm\s*=")
    if clips:
        return CheckedItem(title, Status.DONE, "clipped", tuple(dict.fromkeys(clips))[:_MOST_PLACES])
    if not view.events("backward"):
        return CheckedItem(title, Status.UNKNOWN, "no training loop was found in the source")
    return CheckedItem(title, Status.MISSING, "nothing clips the gradients: clip_grad_norm_(parameters, 1.0)")


def _gate(view: ProjectView) -> CheckedItem:
    title = "Loss and gradient norm are checked (NaN and Inf) before they reach the weights"
    script = training_script(view.sources)
    guarded = view.places(r"\bGuard\(|guard\.(step|watch)\(") if view.places(r"\bstayfinite\b") else []
    if guarded and (script is None or any(place.startswith(f"{script}:") for place in guarded)):
        return CheckedItem(title, Status.DONE, "stayfinite's guard", tuple(guarded[:_MOST_PLACES]))
    bad = [f for f in view.findings if f.code in _BLIND]
    if bad:
        return _from_findings(title, bad, "")
    gates = view.places(r"error_if_nonfinite\s*=\s*True")
    elsewhere: list[str] = []
    for source in view.sources:
        for facts in source.functions:
            steps = [event.line for event in facts.events if event.what == "step"]
            for guard in (guard for guard in facts.guards if guard.finite):
                first = bool(steps) and guard.line < max(steps)
                (gates if first else elsewhere).append(f"{source.path}:{guard.line}")
    if gates:
        return CheckedItem(
            title, Status.DONE, "an isfinite test before the step", tuple(gates[:_MOST_PLACES])
        )
    if elsewhere:
        detail = "an isfinite test, but not before the step in the same function"
        return CheckedItem(title, Status.UNKNOWN, detail, tuple(elsewhere[:_MOST_PLACES]))
    if not view.events("backward"):
        return CheckedItem(title, Status.UNKNOWN, "no training loop was found in the source")
    return CheckedItem(
        title,
        Status.MISSING,
        "nothing tests the loss or the norm; stayfinite run does, without a change",
        (script,) if script else (),
    )


def _effect(view: ProjectView) -> CheckedItem:
    title = "Every setting has an effect, and none is misspelled"
    if not view.found.lint.configs:
        return CheckedItem(title, Status.NOT_APPLICABLE, "no configuration was found")
    return _from_findings(
        title,
        view.of(("CFG001", "CFG012", "CFG013", "CFG014", "CFG017")),
        f"{len(view.found.lint.configs)} configurations",
    )


def _saving(view: ProjectView) -> CheckedItem:
    title = "Checkpoints are saved often enough, and more than one is kept"
    bad = view.of(("CFG015", "PRJ003"))
    if bad:
        return _from_findings(title, bad, "")
    counts = [len(run.saved) for run in view.project.runs if run.saved]
    if counts and max(counts) >= 2:
        where = tuple(run.folder for run in view.project.runs if len(run.saved) >= 2)
        return CheckedItem(title, Status.DONE, f"up to {max(counts)} in one run", where[:_MOST_PLACES])
    saves = view.places(
        r"torch\.save\(|save_checkpoint\(|save_pretrained\(|guard\.save\(|ModelCheckpoint\(|save_steps|save_state\("
    )
    saves += view.values(r"\.ModelCheckpoint$|lightning\S*\.Trainer$")
    saves += view.setting("save_strategy")
    # those save by default
    saves += view.places(r"\b(pl|L|lightning|pytorch_lightning)\.Trainer\(|\bTrainingArguments\(")
    if saves:
        return CheckedItem(title, Status.UNKNOWN, "the source saves; how many are kept shows when it has run",
                           tuple(dict.fromkeys(saves))[:_MOST_PLACES])  # fmt: skip
    if not view.sources:
        return _no_source(title)
    return CheckedItem(title, Status.MISSING, "nothing in the source saves a checkpoint")


def _resume(view: ProjectView) -> CheckedItem:
    title = "A resume brings back optimizer, scheduler, scaler, and the learning rate that is asked for"
    bad = [f for f in view.findings if f.code in _RESUME]
    if bad:
        return _from_findings(title, bad, "")
    whole = view.places(r"resume_from_checkpoint|guard\.restore\(|\.load_state\(|\.fit\(.*ckpt_path")
    if whole:
        return CheckedItem(title, Status.DONE, "all of it at once", tuple(whole[:_MOST_PLACES]))
    loads = view.events("load_state_dict")
    places = tuple(dict.fromkeys(f"{source.path}:{event.line}" for source, event in loads))[:_MOST_PLACES]
    named = " ".join(event.subject.lower() for _, event in loads)
    chosen = view.places(r"[)\]]\.load_state_dict\(")
    if chosen:
        detail = "a state is loaded; of which parts is decided at run time"
        return CheckedItem(title, Status.UNKNOWN, detail, tuple(chosen[:_MOST_PLACES]))
    if loads and "opt" not in named:
        return CheckedItem(title, Status.UNKNOWN, "a state is loaded, no optimizer's by its name", places)
    if loads:
        scaled = any(True for source in view.sources for _ in source.named("GradScaler"))
        used = {"scheduler": bool(view.events("scheduler")), "scaler": scaled}
        lost = [part for part, there in used.items() if there and part[:5] not in named]
        if lost:
            detail = f"the optimizer's state is loaded, that of the {' and the '.join(lost)} is not"
            return CheckedItem(title, Status.MISSING, detail, places)
        return CheckedItem(title, Status.DONE, "state is loaded", places)
    elsewhere = view.places(r"load_checkpoint\(")
    if elsewhere:
        return CheckedItem(title, Status.UNKNOWN, "a checkpoint is loaded; what it brings back is not to be seen here",
                           tuple(elsewhere[:_MOST_PLACES]))  # fmt: skip
    return CheckedItem(
        title, Status.MISSING if view.sources else Status.UNKNOWN, "nothing in the source loads a state"
    )


def _environment(view: ProjectView) -> CheckedItem:
    title = "The machine: torch build, precision support, memory, disk"
    env = view.found.environment
    bad = [f for f in view.found.environment_findings if f.severity is not Severity.INFO]
    disk = f", {env.disk_free / 1e9:.0f} GB of disk free" if env.disk_free is not None else ""
    return _from_findings(title, bad, f"torch {env.torch or 'not installed'}, {env.build}{disk}")


def _monitoring(view: ProjectView) -> CheckedItem:
    title = "The log has loss, gradient norm and learning rate"
    if not view.logs:
        return CheckedItem(title, Status.UNKNOWN, "no log yet")
    best = max(view.logs, key=lambda log: len(log.series))
    wanted = {"loss": (Role.LOSS,), "gradient norm": (Role.NORM,), "learning rate": (Role.RATE,)}
    lost = [name for name, roles in wanted.items() if not any(log.of_role(*roles) for log in view.logs)]
    if lost:
        return CheckedItem(title, Status.MISSING, f"without {', '.join(lost)}", (best.path,))
    return CheckedItem(title, Status.DONE, ", ".join(wanted), (best.path,))


def _validation(view: ProjectView) -> CheckedItem:
    title = "Validation during the run: success is that it improves, not that no NaN was printed"
    measured = [log.path for log in view.logs if log.of_role(Role.EVALUATION)]
    if measured:
        return CheckedItem(title, Status.DONE, "a validation loss is logged", tuple(measured[:_MOST_PLACES]))
    source = view.places(
        r"def (evaluate|validate|validation\w*|eval\w*)\(|model\.eval\(\)|evaluate_every|eval_steps"
    )
    if source:
        return CheckedItem(title, Status.DONE, "the source evaluates", tuple(source[:_MOST_PLACES]))
    if not view.sources:
        return _no_source(title)
    return CheckedItem(title, Status.MISSING, "nothing evaluates the model during the run")


def _seed(view: ProjectView) -> CheckedItem:
    title = "A seed, so that a failure can be seen again"
    seeds = view.places(r"manual_seed\(|seed_everything\(|set_seed\(") + view.setting("seed")
    if seeds:
        return CheckedItem(title, Status.DONE, "seeded", tuple(seeds[:_MOST_PLACES]))
    return CheckedItem(title, Status.MISSING if view.sources else Status.UNKNOWN, "nothing sets a seed")


_ITEMS: tuple[Callable[[ProjectView], CheckedItem], ...] = (
    _data, _precision, _eps, _forms, _rate, _clip, _gate, _effect, _saving, _resume,
    _environment, _monitoring, _validation, _seed,
)  # fmt: skip
TEN = 10
"""The items of the prevention list; those after it are about machine, record and repetition."""
