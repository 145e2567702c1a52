import doctest
import importlib
import pkgutil

import pytest

from stayfinite import ops

MODULES = [module.name for module in pkgutil.iter_modules(ops.__path__, "stayfinite.ops.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


def test_everything_public_is_exported_and_documented() -> None:
    for name in ops.__all__:
        assert getattr(ops, name).__doc__
