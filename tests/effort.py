"""What a test takes each day, and what each night, and how much work a call is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

NIGHTLY = 20
"""So many times as many examples are tried each night."""


def examples(daily: int, **more: Any) -> settings:
    """Return settings with so many examples, more by the profile `nightly` of conftest.py."""
    deep = settings().max_examples >= settings.get_profile("nightly").max_examples
    more["suppress_health_check"] = [HealthCheck.too_slow, *more.get("suppress_health_check", ())]
    return settings(max_examples=daily * NIGHTLY if deep else daily, **more)


def nightly(*parameters: Any) -> list[Any]:
    """Return parameters of a test that are for the night alone; a tuple is one for each name."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.nightly)
        for each in parameters
    ]


def steps_of(work: Callable[[], object]) -> int:
    """Return the number of Python's instructions that `work` takes, on any machine the same."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return count

    former = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(former)
    return steps
