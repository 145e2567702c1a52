"""One thread: the tensors of the tests are tiny, and several workers share the cores. Long files begin first."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell starts background jobs so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("STAYFINITE_PROVE", "off")  # trying remedies takes seconds; tests/prove turns it on

LONG = ("systems", "cases", "replay", "cli")
ALWAYS = (
    "fp16_distillation"  # the one of the five systems that `make test` trains; `make test-long` has them all
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _distributions_check_their_arguments() -> Iterator[None]:
    """torch.compile turns these checks off for the whole process, so a test that compiles would change others."""
    torch.distributions.Distribution.set_default_validate_args(True)
    yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that takes minutes must not be the last to begin, or one worker waits for the other."""
    items.sort(key=lambda item: not set(LONG) & set(item.path.parts))
    for item in items:
        if "systems" in item.path.parts and ALWAYS not in item.path.stem:
            item.add_marker(pytest.mark.long)
