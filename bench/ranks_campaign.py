"""Random schedules on several ranks: the same action in the same step, the same weights, right rank and line, no hang.

    python bench/ranks_campaign.py --schedules 200 --seed 1            exit code 1 if one fails
    python bench/ranks_campaign.py --seed 1 --ranks 4 --only 17        one of them again

A schedule is DDP, plain torch.distributed or fully_shard x the fault, its ranks and steps x accumulation under
no_sync x policy x step or watch x uneven inputs (join), observations and late ranks (bench/trials/rank_schedule.py).
Where steps were only skipped, weights and moments are those of an unguarded training without these steps, bit for bit.
The ranks are processes that live for all schedules (gloo, this host); one that does not end in time is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from trials.rank_schedule import STEPS, RankSchedule, draw

LIMIT = 400.0
"""Seconds for one schedule. It takes less than one on an idle machine; a crowded one is no hang."""


def worker(rank: int, ranks: int, folder: Path, seed: int, numbers: list[int]) -> None:
    """One rank; prints a JSON line a schedule."""
    import torch
    import torch.distributed as dist
    from trials.rank_training import RankTraining

    torch.set_num_threads(1)
    place = f"tcp://127.0.0.1:{os.environ['CAMPAIGN_PORT']}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks)
    for number in numbers:
        schedule = draw(seed, number, ranks)
        report = RankTraining(schedule, rank, ranks).guarded(folder / str(number))
        if _comparable(schedule, report):
            skipped = {step for step, action in enumerate(report["actions"]) if action == "skip"}
            report["reference"] = RankTraining(schedule, rank, ranks).reference(skipped)
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


def _comparable(schedule: RankSchedule, report: dict[str, Any]) -> bool:
    """The same on every rank, because the actions are; where they are not, the schedule has failed anyway."""
    plain = {"none", "skip"} >= set(report["actions"]) and not report["stopped"]
    return plain and schedule.kind not in ("moment", "no-gradient") and not schedule.joins


def faults_of(schedule: RankSchedule, reports: list[dict[str, Any]]) -> list[str]:
    """What of a schedule is not as it should be."""
    found = []
    zero, first = reports[0], reports[0]["incidents"][:1]
    for name in ("actions", "stopped"):
        if not schedule.joins and any(report[name] != zero[name] for report in reports):
            found.append(f"{name} differ: {[report[name] for report in reports]}")
    # A rank whose last update is spoilt is on its own when the run ends: rank 0 goes back, others warn (docs/ranks.md).
    alone = schedule.kind == "moment" and any(step == STEPS - 1 for step, _ in schedule.faults)
    alike = schedule.kind != "no-gradient" and not alone
    if alike and any(report["weights"] != zero["weights"] for report in reports):
        found.append("weights differ")
    if not alone and not all(report["finite"] for report in reports):
        found.append("weights are not finite")
    if any("reference" in report and report["reference"] != report["weights"] for report in reports):
        found.append("weights are not those of a run without the bad steps")
    if schedule.kind in ("none", "no-gradient"):
        if set(zero["actions"]) - {"none"} or zero["incidents"]:
            found.append(f"a healthy run has {zero['actions']}, {zero['incidents']}")
        return found
    if schedule.kind == "moment" or schedule.joins:
        return found
    step, rank = schedule.faults[0]
    expected = 0 if rank == -1 else rank
    if not first:
        return [*found, "no incident"]
    if (first[0]["step"], first[0]["rank"]) != (step, expected):
        found.append(f"step {step} of rank {expected} failed; reported are {first[0]}")
    if schedule.kind == "nan-input":
        if "DAT001" not in first[0]["codes"]:
            found.append(f"the bad batch is not named: {first[0]}")
    elif "born-here" not in (first[0]["source"] or ""):
        found.append(f"the line is not named: {first[0]}")
    return found


def run(seed: int, ranks: int, numbers: list[int]) -> tuple[int, list[str]]:
    """(schedules that ended, sentences on those that failed)"""
    with tempfile.TemporaryDirectory() as scratch:
        given = [str(ranks), scratch, str(seed), ",".join(map(str, numbers))]
        command = [sys.executable, __file__, "--worker"]
        errors = [open(Path(scratch) / f"errors-{rank}", "w+") for rank in range(ranks)]  # noqa: PTH123, SIM115
        environment = {**os.environ, "CAMPAIGN_PORT": str(_free_port())}
        processes = [
            subprocess.Popen(
                [*command, str(rank), *given],
                stdout=subprocess.PIPE,
                stderr=errors[rank],
                text=True,
                env=environment,
            )
            for rank in range(ranks)
        ]
        said: list[queue.Queue[str | None]] = [queue.Queue() for _ in processes]
        for process, lines in zip(processes, said, strict=True):
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        failed, done, spare = [], 0, 60.0  # for starting
        try:
            for number in numbers:
                until, reports = time.monotonic() + LIMIT + spare, []
                spare = 0.0
                for rank, lines in enumerate(said):
                    try:
                        line = lines.get(timeout=max(0.1, until - time.monotonic()))
                    except queue.Empty:
                        line = None
                    if line is None:
                        spec, last = draw(seed, number, ranks), _last_words(errors)
                        failed.append(
                            f"--seed {seed} --ranks {ranks} --only {number}: rank {rank}: {last}: {spec}"
                        )
                        return done, failed
                    reports.append(json.loads(line))
                done += 1
                wrong = faults_of(draw(seed, number, ranks), reports)
                if wrong:
                    spec = draw(seed, number, ranks)
                    failed.append(
                        f"--seed {seed} --ranks {ranks} --only {number}: {'; '.join(wrong)}: {spec}"
                    )
        finally:
            for process, file in zip(processes, errors, strict=True):
                process.kill()
                process.wait()
                file.close()
        return done, failed


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def _last_words(errors: list[Any]) -> str:
    """Of the rank that failed by itself, and not because another was gone."""
    said = []
    for file in errors:
        file.seek(0)
        said += file.read().strip().splitlines()[-1:]
    first = [line for line in said if "Connection closed" not in line and "RankLost" not in line]
    return str((first or said or ["it did not end in time"])[0])


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", type=int, nargs="+", default=None)
    asked = parser.parse_args()
    begun, all_failed, all_done = time.monotonic(), [], 0
    for index, ranks in enumerate(asked.ranks):
        share = asked.schedules // len(asked.ranks) + (index < asked.schedules % len(asked.ranks))
        left = asked.only or list(range(share))
        while left:  # a schedule that hangs takes its processes with it: the rest goes on in new ones
            done, failed = run(asked.seed, ranks, left)
            print(f"{ranks} ranks: {done} schedules ended, {time.monotonic() - begun:.0f} s", flush=True)
            for line in failed:
                print(line, flush=True)
            all_done, all_failed = all_done + done, all_failed + failed
            left = left[done + 1 :]
    print(
        f"{all_done} schedules ended, {len(all_failed)} failed, seed {asked.seed}, ranks "
        f"{', '.join(map(str, asked.ranks))}, {time.monotonic() - begun:.0f} s"
    )
    sys.exit(1 if all_failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        own, count, place, chosen, which = sys.argv[2:]
        worker(int(own), int(count), Path(place), int(chosen), [int(number) for number in which.split(",")])
    else:
        main()
