"""One thread: the tensors of the tests are tiny, and several workers share the cores. Long files begin first."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from hypothesis import HealthCheck, settings

import preloaded

gc.collect()
gc.freeze()  # torch is nobody's garbage: going through its million objects is most of what a collection costs

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell starts background jobs so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("STAYFINITE_PROVE", "off")  # trying remedies takes seconds; tests/prove turns it on

LONG = ("systems", "cases", "replay", "cli")
ALWAYS = (
    "fp16_distillation"  # the one of the five systems that `make test` trains; `make test-long` has them all
)


settings.register_profile("no times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no times")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _distributions_check_their_arguments() -> Iterator[None]:
    """torch.compile turns these checks off for the whole process, so a test that compiles would change others."""
    torch.distributions.Distribution.set_default_validate_args(True)
    yield


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> bool:
    """True in a process that runs nothing but this test; elsewhere it is run in one, and there is nothing left to do.

    For tests of what is replaced in torch: guards of other tests may still listen in this process.
    """
    if os.environ.get("STAYFINITE_ALONE") == request.node.nodeid:
        return True
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", request.node.nodeid]
    environment = {**os.environ, "STAYFINITE_ALONE": request.node.nodeid}
    done = preloaded.run(command, cwd=request.config.rootpath, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that takes minutes must not be the last to begin, or one worker waits for the other."""
    items.sort(key=lambda item: not set(LONG) & set(item.path.parts))
    for item in items:
        if "systems" in item.path.parts and ALWAYS not in item.path.stem:
            item.add_marker(pytest.mark.long)
