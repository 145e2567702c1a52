"""Puts the verdicts of all parts side by side: the Project, run by run, and what its rules find."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.doctor import claims
from stayfinite.doctor.examine import Examination, Probe
from stayfinite.doctor.runs import configs_of, group_runs, launchers_of
from stayfinite.findings import Finding, examine, worst_first
from stayfinite.findings.subjects.checkpoint import ConfiguredRate
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.findings.subjects.log import ConfiguredLogRate
from stayfinite.findings.subjects.project import Project, ProjectRun
from stayfinite.logs.examine import LogVerdict
from stayfinite.logs.examine import judge as judge_log
from stayfinite.readers.launcher import Launcher


def compare(found: Examination, probe: Probe | None = None) -> Project:
    """The project; with a probe, the checkpoints that look good are tried."""
    root = found.inventory.root
    project = Project(root, group_runs(root, found.logs, found.checkpoints))
    project.precisions = [
        *claims.configured_precisions(found.lint.configs, found.lint.findings),
        *claims.launched_precisions(found.launchers),
        *claims.source_precisions(found.lint.read),
    ]
    for run in project.runs:
        own = configs_of(run, found.lint.configs, found.launchers, root, project.runs)
        run.configs = [config.path for config in own]
        launchers = launchers_of(run, found.launchers, len(project.runs))
        _add_claims(run, found, own, launchers)
        _judge_with_rates(run, found)
        if probe is not None:
            _try_candidates(run, probe)
    return project


def _add_claims(
    run: ProjectRun, found: Examination, own: Sequence[ConfigFile], launchers: Sequence[Launcher]
) -> None:
    run.rates = [
        *claims.configured_rates(own),
        *claims.launched_rates(launchers),
        *claims.logged_rates(run.logs),
    ]
    run.precisions = [
        *claims.configured_precisions(own, found.lint.findings),
        *claims.launched_precisions(launchers),
        *claims.source_precisions(found.lint.read),
        *claims.logged_precisions(run.logs),
    ]
    if run.saved:
        shown = run.last_good() or run.saved[-1]
        run.rates += claims.saved_rates(shown)
        saved = claims.saved_precision(shown)
        run.precisions += [saved] if saved is not None else []


def _judge_with_rates(run: ProjectRun, found: Examination) -> None:
    """Logs and checkpoints once more, beside the rates that configuration and launcher ask for."""
    asked = [rate for rate in run.rates if rate.origin in ("configuration", "launcher")]
    if not asked:
        return
    paths = {log.path for log in run.logs}
    for verdict in found.logs:
        if verdict.log.path in paths:
            configured = [ConfiguredLogRate(rate.words, rate.value, rate.file) for rate in asked]
            verdict.findings = judge_log(verdict.log, configured).findings
    saved = {state.path for state in run.saved}
    for checkpoint in found.checkpoints:
        if checkpoint.checkpoint.path in saved and checkpoint.checkpoint.optimizers:
            checkpoint.checkpoint.configured = [ConfiguredRate(r.words, r.value, r.file) for r in asked]
            checkpoint.findings = worst_first(examine(checkpoint.checkpoint))


def _try_candidates(run: ProjectRun, probe: Probe) -> None:
    """The newest first; where it is dead, halving: what comes after a dead one is dead too."""
    candidates = [saved for saved in run.saved if saved.healthy and run.outside_failure(saved) is not False]
    alive, dead = -1, len(candidates)
    place = dead - 1
    while alive < place < dead:
        saved = candidates[place]
        saved.dead, saved.probed = probe(saved.path), True
        if saved.dead is None:
            alive = place
        else:
            dead = place
        place = (alive + dead) // 2
    for saved in candidates[dead:]:
        if not saved.probed:
            saved.dead = f"written after {candidates[dead].path}, for which {candidates[dead].dead}"


def all_findings(found: Examination, project: Project) -> list[Finding]:
    """Everything that was found, worst first; the same finding of many checkpoints of a run once."""
    findings = [*examine(project), *found.lint.findings, *found.environment_findings]
    findings += _of_logs(found.logs, project)
    findings += _once_a_run(found.checkpoints + found.weights, project)
    findings += found.model.findings if found.model is not None else []
    findings += [finding for verdict in found.data for finding in verdict.findings]
    sources = {os.path.realpath(source.path): source.text for source in found.lint.read}
    findings += [finding for incident in found.incidents for finding in _of_incident(incident.data, sources)]
    return sorted(worst_first(findings), key=lambda f: (f.severity.rank, _elsewhere(f, project)))


def _elsewhere(finding: Finding, project: Project) -> bool:
    """In a configuration that no run here has used, while it is known which one was."""
    used = {path for run in project.runs for path in run.configs}
    return finding.code.startswith("CFG") and bool(used) and finding.file not in used


def _of_logs(verdicts: Sequence[LogVerdict], project: Project) -> list[Finding]:
    """One finding of a rule a run: its screen output repeats what its log says."""
    homes = {log.path: run.folder for run in project.runs for log in run.logs}
    kept: dict[tuple[str, str], Finding] = {}
    for verdict in sorted(verdicts, key=lambda v: (v.log.format == "text", -len(v.log.series))):
        home = homes.get(verdict.log.path)
        for finding in verdict.findings if home is not None else []:
            kept.setdefault((str(home), finding.code), finding)
    return list(kept.values())


def _once_a_run(verdicts: Sequence[CheckpointVerdict], project: Project) -> list[Finding]:
    """Of checkpoints that went bad one after the other the first tells the story."""
    homes = {saved.path: run.folder for run in project.runs for saved in run.saved}
    order = {saved.path: place for run in project.runs for place, saved in enumerate(run.saved)}
    kept: dict[tuple[str, str], Finding] = {}
    for verdict in sorted(verdicts, key=lambda v: order.get(v.checkpoint.path, 0)):
        path = verdict.checkpoint.path
        for finding in verdict.findings:
            kept.setdefault((homes.get(path, path), finding.code), finding)
    return list(kept.values())


def _is_mended(birth: object, sources: dict[str, str]) -> bool:
    """The line on which it began is not in its file any more: it was mended, or is another program by now."""
    if not isinstance(birth, dict):
        return False
    file, line = birth.get("file"), birth.get("source")
    if not isinstance(file, str) or not isinstance(line, str) or not line.strip():
        return False
    try:
        text = sources.get(os.path.realpath(file))
    except ValueError:
        return False  # no path
    first = line.strip().splitlines()[0]
    return text is not None and all(first not in known for known in text.splitlines())


def _of_incident(data: dict[str, object], sources: dict[str, str]) -> list[Finding]:
    """The findings of an incident that the guard wrote; a file that other hands changed gives what it can."""
    if _is_mended(data.get("birth"), sources):
        return []
    found = []
    raw = data.get("findings")
    for item in raw if isinstance(raw, list) else []:
        try:
            found.append(Finding.from_json(item))
        except (KeyError, TypeError, ValueError):
            continue  # not in the form we write: the rest of the incident may be
    return found[:3]
