"""Boards for a test, which go with it."""

import gc
from collections.abc import Iterator

import pytest

from loopback import Boards, boards
from patience import comes


@pytest.fixture
def board() -> Iterator[Boards]:
    """One host, of which nothing may be left."""
    with boards("one") as found:
        yield found
        gc.collect()  # a backend in the frames of an expected error
        assert comes(found.clear), (found.left(), found.each[0].processes())


@pytest.fixture
def two() -> Iterator[Boards]:
    with boards("one", "two") as found:
        yield found
