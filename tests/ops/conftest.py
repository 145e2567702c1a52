"""One thread, and property tests that try the same few examples every time."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("ops", derandomize=True, max_examples=40, deadline=None, database=None)


@pytest.fixture(autouse=True, scope="package")
def _small_and_repeatable() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
