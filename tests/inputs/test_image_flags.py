"""Flags of images that cannot work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precision_bisect.errors import UsageError
from precision_bisect.options import Options


@pytest.mark.parametrize(
    "flags",
    [
        {"image_size": (0, 3)},
        {"image_size": 640},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"mean": (1.0, 2.0)},
        {"mean": "0.5"},
        {"std": (0.0,)},
        {"std": (1.0, 1.0, float("inf"))},
        {"layout": "hwc"},
    ],
    ids=str,
)
def test_flags_that_cannot_work(flags: dict[str, Any]) -> None:
    """Python's callers get the same one line."""
    good = Options(model=Path("m.onnx"))
    with pytest.raises(UsageError) as caught:
        replace(good, **flags)
    assert caught.value.hint
