"""The real TensorRT-RTX, for tests in several folders."""

import os

import pytest

from precision_bisect.backends.tensorrt.flavour import Flavour, load_flavour
from precision_bisect.errors import PluginError


@pytest.fixture(scope="session")
def rtx() -> Flavour:
    """Return TensorRT-RTX. In CI a missing one is an error, elsewhere the test is skipped."""
    try:
        return load_flavour("tensorrt-rtx")
    except PluginError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(error.one_line())
