"""One thread: the tensors of the tests are tiny, and several workers share the cores."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
