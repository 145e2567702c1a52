"""Which logs, checkpoints and configurations belong to one run: by the folders they lie in and by their names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.findings import Finding, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.findings.subjects.log import Bucket, Log, Point, Role, Series
from stayfinite.findings.subjects.project import FailureWindow, Project, ProjectRun, SavedState
from stayfinite.logs.examine import LogVerdict
from stayfinite.readers.launcher import Launcher

_PART_OF_RUN = re.compile(
    r"^(checkpoint-\d+|checkpoints?|ckpts?|weights|logs?|tensorboard|tb|events|wandb|csv)$", re.I
)
_FAILED = ("LOG001", "LOG002", "LOG009", "LOG014")
"""Rules whose errors say that the run itself had failed."""
_LONG_FOR_NORM = 10
_LONG_FOR_LOSS = 30
_SHARE_FOR_LOSS = 0.25


def group_runs(
    root: str, logs: Sequence[LogVerdict], checkpoints: Sequence[CheckpointVerdict]
) -> list[ProjectRun]:
    """The runs in the order of their folders. A checkpoint goes to the nearest log."""
    runs: dict[str, ProjectRun] = {}
    for verdict in _without_earlier_copies(logs, root):
        folder = run_folder(verdict.log.path, root)
        run = runs.setdefault(folder, ProjectRun(folder))
        run.logs.append(verdict.log)
        window = failure_window(verdict)
        if window is not None and (run.window is None or window.first < run.window.first):
            run.window = window
    for checkpoint in checkpoints:
        folder = run_folder(checkpoint.checkpoint.path, root)
        home = _nearest(folder, list(runs)) or folder
        runs.setdefault(home, ProjectRun(home)).saved.append(saved_state(checkpoint))
    _join_copies(runs)
    for run in runs.values():
        run.saved.sort(key=lambda saved: (math.inf if saved.step is None else saved.step, saved.written or 0))
    return [runs[folder] for folder in sorted(runs)]


def _without_earlier_copies(logs: Sequence[LogVerdict], root: str) -> list[LogVerdict]:
    """Every checkpoint-N/trainer_state.json holds the log up to there: the longest is the run's."""
    kept: list[LogVerdict] = []
    longest: dict[str, LogVerdict] = {}
    for verdict in logs:
        if Path(verdict.log.path).name != "trainer_state.json":
            kept.append(verdict)
            continue
        folder = run_folder(verdict.log.path, root)
        held = longest.get(folder)
        if held is None or (held.log.last_step or 0) < (verdict.log.last_step or 0):
            longest[folder] = verdict
    return [*kept, *longest.values()]


def _join_copies(runs: dict[str, ProjectRun]) -> None:
    """The screen output of a run (nohup.out above its folder) has no checkpoints and ends at the same step."""
    for folder, run in list(runs.items()):
        inner = [
            other
            for other in runs.values()
            if other is not run
            and Path(folder) in Path(other.folder).parents
            and other.last_step == run.last_step
        ]
        if run.saved or len(inner) != 1 or not inner[0].logs:
            continue
        home = inner[0]
        home.logs += run.logs
        if home.window is None or (run.window is not None and run.window.first < home.window.first):
            home.window = run.window
        del runs[folder]


def run_folder(path: str, root: str) -> str:
    """The folder of a file, without parts that every run has (checkpoints/, logs/, checkpoint-500/)."""
    folder = Path(path).parent if not Path(path).is_dir() else Path(path)
    while folder != Path(root) and folder != folder.parent and _PART_OF_RUN.match(folder.name):
        folder = folder.parent
    return str(folder)


def _nearest(folder: str, homes: Sequence[str]) -> str | None:
    """The run whose folder shares the longest beginning with this one; None where two are equally near."""
    if folder in homes:
        return folder
    if len(homes) == 1:
        return homes[0]
    names = set(Path(folder).parts)

    def shared(home: str) -> tuple[int, int]:
        common = os.path.commonpath([Path(folder).absolute(), Path(home).absolute()])
        return len(Path(common).parts), len(names.intersection(Path(home).parts))

    ordered = sorted(homes, key=shared, reverse=True)
    if len(ordered) >= 2 and shared(ordered[0]) == shared(ordered[1]):
        return None
    return ordered[0] if ordered else None


def saved_state(verdict: CheckpointVerdict) -> SavedState:
    reason = "" if verdict.healthy else verdict.findings[0].message.partition(", first at")[0]
    times = []
    for file in verdict.checkpoint.files:
        try:
            times.append(Path(file).stat().st_mtime)
        except OSError:
            continue  # gone meanwhile; then nothing is known of its time
    return SavedState(verdict.checkpoint, verdict.healthy, reason, max(times, default=None))


def failure_window(verdict: LogVerdict) -> FailureWindow | None:
    """From the first to the last bad value of a run that failed.

    One bad batch long before, or the steps that a scaler skips while it finds its scale, are not the beginning of the
    failure: the window starts after the last stretch in which the series was finite for long.
    """
    errors = [f for f in verdict.findings if f.code in _FAILED and f.severity is Severity.ERROR]
    if not errors:
        return None
    log = verdict.log
    named = {str(finding.evidence.get("series")) for finding in errors}
    bad = [series for name, series in log.series.items() if name in named and series.bad]
    begins = [(point, series) for series in bad if (point := _last_beginning(log, series)) is not None]
    hidden = next((finding for finding in errors if finding.code == "LOG009"), None)
    if not begins:
        return _hidden_window(log, hidden) if hidden is not None else None
    first, series = min(begins, key=lambda item: item[0].order)
    last = max(one.last_bad.step for one in bad if one.last_bad is not None)
    to_end = hidden is not None or any(one.ends_bad for one in bad)
    over = hidden is None and all(_finite_since(one) >= _for_long(one) for one in bad)
    if hidden is not None and log.last_step is not None:
        last = max(last, log.last_step)
    return FailureWindow(
        log.path,
        first.line,
        series.name,
        first.step,
        last,
        to_end,
        log.counted,
        _grew_from(verdict, first.step),
        over,
    )


def _for_long(series: Series) -> int:
    """How many finite values in a row say that a series is well again."""
    if series.role is Role.NORM:  # a scaler that finds its scale makes single bad norms, but no bad loss
        return _LONG_FOR_NORM
    return max(_LONG_FOR_LOSS, int(_SHARE_FOR_LOSS * series.count))


def _finite_since(series: Series) -> int:
    """How many values came after the last bad one."""
    finite = 0
    for bucket in reversed(series.buckets):
        if bucket.bad:
            break
        finite += bucket.finite
    return finite


def _grew_from(verdict: LogVerdict, failed: float) -> float | None:
    """The step at which a growth began that led to the failure, as the log's own rule found it."""
    starts = [f.evidence.get("from_step") for f in verdict.findings if f.code == "LOG003"]
    known = [float(start) for start in starts if isinstance(start, (int, float)) and start < failed]
    return min(known, default=None)


def _hidden_window(log: Log, finding: Finding) -> FailureWindow | None:
    """A loss that stands still while the run is dead has no bad value, only a step since when."""
    since = finding.evidence.get("since_step")
    if not isinstance(since, (int, float)) or log.last_step is None:
        return None
    series = str(finding.evidence.get("series"))
    return FailureWindow(log.path, finding.line or 0, series, float(since), log.last_step, True, log.counted)


def _last_beginning(log: Log, series: Series) -> Point | None:
    """Where the last cluster of bad values begins: before it, the series was finite for long."""
    enough = _for_long(series)
    begin: Bucket | None = None
    finite = 0
    for bucket in reversed(series.buckets):
        if bucket.bad:
            begin, finite = bucket, 0
            continue
        finite += bucket.finite
        if begin is not None and finite >= enough:
            break
    if begin is None or series.first_bad is None:
        return series.first_bad
    starts = [
        h.point for h in log.kept("nonfinite") if h.series == series.name and h.point.order >= begin.order
    ]
    if starts:
        return min(starts, key=lambda point: point.order)
    if series.first_bad.order >= begin.order:
        return series.first_bad
    return Point(begin.step, math.nan, series.first_bad.line, begin.order)


def configs_of(
    run: ProjectRun,
    configs: Sequence[ConfigFile],
    launchers: Sequence[Launcher],
    root: str,
    others: Sequence[ProjectRun] = (),
) -> list[ConfigFile]:
    """The configurations of a run: in its folder, of its name, writing to it, named by a launcher, or the only one."""
    folder = Path(run.folder)
    elsewhere = [
        Path(other.folder) for other in others if other is not run and Path(other.folder) != Path(root)
    ]
    configs = [c for c in configs if not any(place in Path(c.path).parents for place in elsewhere)]
    inside = [config for config in configs if folder in Path(config.path).parents and folder != Path(root)]
    if inside:
        return inside
    launchable = {"accelerate", "deepspeed"}
    own = [config for config in configs if config.kind not in launchable]
    beside = [config for config in configs if config.kind in launchable]
    named = [config for config in own if Path(config.path).stem == folder.name or _writes_to(config, folder)]
    if named:
        return [*named, *beside]
    if not own and len(beside) == 1:
        return beside
    asked = {Path(item.value).name for launcher in launchers for item in launcher.configs}
    chosen = [config for config in own if Path(config.path).name in asked]
    if len(chosen) == 1:
        return [*chosen, *beside]
    return [*own, *beside] if len(own) == 1 else []


def is_record(config: str) -> bool:
    """A framework wrote it down when the run began; changing it changes nothing."""
    path = Path(config)
    return path.name == "hparams.yaml" or path.parent.name == ".hydra" or "wandb" in path.parts


def _writes_to(config: ConfigFile, folder: Path) -> bool:
    entries = config.find(
        "output_dir", "out_dir", "save_dir", "run_dir", "log_dir", "checkpoint_dir", "workdir"
    )
    return any(Path(str(entry.value)).name == folder.name for entry in entries if entry.value)


def launchers_of(run: ProjectRun, launchers: Sequence[Launcher], runs: int) -> list[Launcher]:
    """Those that name the run or its configuration; of a single run, the only one that asks for anything."""
    names = {Path(run.folder).name, *(Path(config).name for config in run.configs)}
    naming = [launcher for launcher in launchers if any(name in launcher.text for name in names)]
    asking = [launcher for launcher in launchers if launcher.precisions or launcher.rates]
    if naming:
        return naming
    return asking if len(asking) == 1 and runs == 1 else []


def run_of(project: Project, verdict: CheckpointVerdict) -> ProjectRun:
    """The run a checkpoint is of; one of its own where it lies outside the project's runs."""
    wanted = os.path.realpath(verdict.checkpoint.path)
    for run in project.runs:
        if any(os.path.realpath(saved.path) == wanted for saved in run.saved):
            return run
    home = _nearest(run_folder(verdict.checkpoint.path, project.root), [run.folder for run in project.runs])
    return next((run for run in project.runs if run.folder == home), ProjectRun(project.root))


def scale_moved(log: Log) -> bool:
    """The log shows a loss scale as only float16 training with a scaler has it."""
    scale = log.main(Role.SCALE)
    return scale is not None and scale.maximum > 1.0
