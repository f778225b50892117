"""What overflows without harm on the samples is told, and kept by the point `margin`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import parse, save
from precision_bisect import find
from precision_bisect.runs.results.result import Result

FELT = "s = Mul(x, x) f = Mul(s, third)"
CAPPED = "t = Mul(x, thousand) u = Min(t, cap) c = Mul(u, unit)"
MASKED = "m = Add(x, mask) c = Softmax(m)"
CONSTANTS = (
    "float third = {0.00333333333}, float thousand = {1e3}, float cap = {32768},"
    " float unit = {0.000030517578125}, float[4] mask = {-3.4e38, 0, 0, 0}"
)


def searched(folder: Path, body: str, **options: Any) -> Result:
    """Search a model that reads x = 300."""
    graph = f"(float[4] x) => (float[4] y) <{CONSTANTS}> {{ {body} }}"
    sample = {"x": np.full(4, 300, np.float32)}
    return find(save(parse(graph), folder), tol=1e-2, inputs=sample, out=folder / "run", **options)


@pytest.mark.parametrize(
    ("others", "unfelt"), [(CAPPED, 2), (MASKED, 0)], ids=["capped", "mask of attention"]
)
def test_an_overflow_that_no_sample_feels(tmp_path: Path, others: str, unfelt: int) -> None:
    """The answer leaves it low; a mask is meant to overflow, and not told."""
    told = searched(tmp_path, f"{FELT} {others} y = Add(f, c)")
    assert 2 == len(told.kept)
    points = {each.point: set(each.kept) for each in told.curve}
    remarks = [note for note in told.notes if "do not feel" in note]
    assert (unfelt > 0) == ("margin" in points) == bool(remarks)
    if unfelt:
        assert set(told.kept) < points["margin"]
        assert unfelt == len(points["margin"]) - len(told.kept)
        assert remarks[0].startswith(f"{unfelt} layers that run in FP16 leave its range")
        assert "--export-point margin" in remarks[0]


def test_it_is_told_where_nothing_has_to_be_kept(tmp_path: Path) -> None:
    """Then there is no curve, and `--keep` keeps it."""
    told = searched(tmp_path, f"{CAPPED} y = Identity(c)")
    assert not told.kept
    (remark,) = (note for note in told.notes if "do not feel" in note)
    assert "--keep" in remark


def test_who_exports_the_margin_is_not_told_to(tmp_path: Path) -> None:
    """The remark says that the exported plan has it."""
    told = searched(tmp_path, f"{FELT} {CAPPED} y = Add(f, c)", export_point="margin")
    (remark,) = (note for note in told.notes if "do not feel" in note)
    assert "--export-point" not in remark


BORN = {
    "log of what became 0": "t = Mul(x, tiny) l = Log(t) y = Clip(l, low, high)",
    "a branch not taken": "t = Mul(x, tiny) r = Div(t, t) c = Greater(x, high) y = Where(c, x, r)",
}


@pytest.mark.parametrize("body", BORN.values(), ids=BORN)
def test_what_is_infinite_though_fp32_stays_in_range_is_told(body: str, tmp_path: Path) -> None:
    """A value that becomes 0 makes Inf or NaN; that a later operator hides it is no proof."""
    constants = "float tiny = {1e-12}, float low = {-10}, float high = {10}"
    graph = f"(float[4] x) => (float[4] y) <{constants}> {{ {body} }}"
    sample = {"x": np.full(4, 300, np.float32)}
    told = find(save(parse(graph), tmp_path), tol=1e-2, inputs=sample, out=tmp_path / "run")
    assert not told.kept
    assert any("NaN or Inf" in note for note in told.notes)
