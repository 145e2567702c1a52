"""Threads of a script: the one that trains is guarded, wherever it was started; what others train is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.running import guarded, plain

FOUR_TRAININGS = """
    import threading
    import torch

    def train(seed, ends):
        drawn = torch.Generator().manual_seed(seed)
        weight = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.AdamW([weight], 0.01)
        for _ in range(60):
            optimizer.zero_grad()
            (weight - torch.randn(3, generator=drawn)).square().sum().backward()
            optimizer.step()
        ends[seed] = weight.tolist()

    ends = {}
    threads = [threading.Thread(target=train, args=(seed, ends)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(ends.items()))
"""

MADE_BY_THE_MAIN_THREAD = """
    import threading
    import torch

    torch.manual_seed(0)
    nets = [torch.nn.Linear(4, 1) for _ in range(3)]
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    inputs = torch.randn(64, 4)

    def train(number):
        for _ in range(60):
            optimizers[number].zero_grad()
            nets[number](inputs).square().mean().backward()
            optimizers[number].step()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print([net.weight.tolist() for net in nets])
"""

LOOKED_AT_MEANWHILE = """
    import threading
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    over, looked = threading.Event(), threading.Event()

    def look():
        while not over.is_set():
            with torch.no_grad():
                if torch.isnan(net(torch.zeros(0, 3)).mean()):
                    looked.set()

    looking = threading.Thread(target=look)
    looking.start()
    looked.wait()
    drawn = torch.Generator().manual_seed(1)
    for _ in range(100):
        optimizer.zero_grad()
        net(torch.randn(8, 3, generator=drawn)).square().mean().backward()
        optimizer.step()
    over.set()
    looking.join()
    print(net.weight.tolist())
"""

A_THREAD_FOR_EACH_EPOCH = """
    import threading
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss_of(inputs):
        chance = net(inputs).sigmoid()
        return -(1 - chance).log().mean()

    def train(epoch):
        for number in range(10):
            inputs = torch.randn(8, 3)
            if epoch == 1 and number == 7:
                inputs = inputs * 1e4
            optimizer.zero_grad()
            loss_of(inputs).backward()
            optimizer.step()

    for epoch in range(3):
        thread = threading.Thread(target=train, args=(epoch,))
        thread.start()
        thread.join()
    print(torch.isfinite(net.weight).all().item())
"""

FETCHED_AHEAD = """
    import queue
    import threading
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Ahead(threading.Thread):
        def __init__(self, batches):
            super().__init__(daemon=True)
            self.queue, self.batches = queue.Queue(2), batches
            self.start()

        def run(self):
            for batch in self.batches:
                self.queue.put(batch)
            self.queue.put(None)

        def __iter__(self):
            return iter(self.queue.get, None)

    torch.manual_seed(0)
    data = torch.randn(200, 4)
    data[77, 2] = float("nan")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        for (inputs,) in Ahead(DataLoader(TensorDataset(data), batch_size=10)):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
    print(all(value.isfinite().all().item() for value in net.state_dict().values()))
"""


@pytest.mark.parametrize("source", [FOUR_TRAININGS, MADE_BY_THE_MAIN_THREAD])
def test_trainings_in_several_threads_are_as_they_are_by_python_alone(tmp_path: Path, source: str) -> None:
    ended = guarded(tmp_path, source)
    assert ended.returncode == 0
    assert ended.stdout == plain(tmp_path, source).stdout
    assert "Exception in thread" not in ended.stderr
    assert "thread" in ended.stderr  # that it was not watched, or not guarded
    assert len(ended.stderr.splitlines()) == 1


def test_a_model_that_another_thread_looks_at_is_trained_as_ever(tmp_path: Path) -> None:
    ended = guarded(tmp_path, LOOKED_AT_MEANWHILE)
    assert ended.returncode == 0
    assert ended.stdout == plain(tmp_path, LOOKED_AT_MEANWHILE).stdout
    assert ended.stderr == ""


def test_a_failure_in_a_thread_is_refused_and_found_at_its_line(tmp_path: Path) -> None:
    ended = guarded(
        tmp_path, A_THREAD_FOR_EACH_EPOCH, "--no-prove", "--format", "json", "--output", "out.json"
    )
    (incident,) = json.loads((tmp_path / "out.json").read_text())["incidents"]
    assert ended.stdout == "True\n"
    assert incident["step"] == 17
    assert (incident["birth"]["line"], incident["birth"]["op"]) == (11, "aten.log.default")
    assert incident["findings"][0]["code"] == "NUM001"


def test_a_bad_row_that_a_thread_has_fetched_ahead_is_refused_and_found(tmp_path: Path) -> None:
    ended = guarded(tmp_path, FETCHED_AHEAD, "--no-prove", "--format", "json", "--output", "out.json")
    incidents = json.loads((tmp_path / "out.json").read_text())["incidents"]
    assert ended.stdout == "True\n"
    assert incidents[0]["step"] == 7
    assert incidents[0]["findings"][0]["code"] == "DAT001"
