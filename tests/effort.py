"""How many examples of Hypothesis a test takes: some each day, ten times as many each night."""

from typing import Any

from hypothesis import settings

NIGHTLY = 10


def examples(daily: int, **more: Any) -> settings:
    """Return settings with so many examples, more by the profile `nightly` of conftest.py."""
    deep = settings().max_examples > settings.get_profile("default").max_examples
    return settings(max_examples=daily * NIGHTLY if deep else daily, **more)
