"""Folders of many files: read when a sample is asked for, checked before anything is written."""

from pathlib import Path

import numpy as np
import pytest

import models
import tiny
from effort import nightly
from precision_bisect.errors import InputError
from precision_bisect.judging.inputs.input_files import MOST_HELD, placed_samples
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.unseen import Calibrating
from precision_bisect.search.sample_sets import pool_of

MANY = MOST_HELD + 6


def folder_of(path: Path, count: int) -> Path:
    """Write so many samples of the small model, each in a file of its own."""
    path.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        x = (0.5 + rng.random((1, 8))).astype(np.float32)
        np.savez(path / f"{number:03}.npz", x=x)
    return path


def test_many_files_are_not_held(tmp_path: Path) -> None:
    """Each access reads its file again; few are read once."""
    placed = placed_samples(folder_of(tmp_path / "many", MANY), ["x"])
    first = str(tmp_path / "many" / "000.npz")
    assert (MANY, True) == (len(placed), placed[first] is not placed[first])
    few = placed_samples(folder_of(tmp_path / "few", 3), ["x"])
    assert few[str(tmp_path / "few" / "000.npz")] is few[str(tmp_path / "few" / "000.npz")]


@pytest.mark.parametrize("isolate", [*nightly("never"), "always"])
def test_a_search_over_many_files_promises_by_all_of_them(tmp_path: Path, isolate: str) -> None:
    """All but the pool have judged the answer, in this process and in a child."""
    inputs = folder_of(tmp_path / "inputs", MANY)
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(model, tmp_path / "run", inputs=inputs, isolate=isolate)
    assert Status.FOUND is result.status
    assert result.unseen is not None and result.inputs is not None
    assert (MANY, MANY) == (
        result.unseen.judged + result.unseen.took_part,
        result.inputs.samples,
    )
    assert 0 == result.unseen.failed
    again = tiny.search(model, tmp_path / "run", inputs=inputs, isolate=isolate, resume=True)
    assert (result.kept, result.unseen) == (again.kept, again.unseen)
    assert result.evaluations == again.evaluations


def test_a_point_of_the_curve_is_no_better_than_on_its_worst_sample(tmp_path: Path) -> None:
    """Samples that did not choose count in its worst error, also where they refuted it."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    options = {"tol": None, "atol": 1e-2, "copies": 0}
    result = tiny.search(model, tmp_path / "run", inputs=tiny.samples(20), **options)
    told = [each for each in result.curve if each.over_samples is not None]
    assert any(each.over_samples.samples == 20 for each in told if each.over_samples)
    for each in told:
        assert each.over_samples is not None and each.error_max is not None
        assert each.over_samples.p95 <= each.error_max


def test_a_bad_file_among_many_is_one_line_before_anything_is_written(tmp_path: Path) -> None:
    """Whichever it is, it is named, and no run folder is left."""
    inputs = folder_of(tmp_path / "inputs", MANY)
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for number in (1, MANY - 1):
        bad = inputs / f"{number:03}.npz"
        kept = bad.read_bytes()
        for write in (
            lambda path: np.savez(path, x=np.full((1, 8), np.nan, np.float32)),
            lambda path: path.write_bytes(b"no archive"),
            lambda path: np.savez(path, x=np.ones((1, 9), np.float32)),
        ):
            write(bad)
            with pytest.raises(InputError, match=bad.name):
                tiny.search(model, tmp_path / "run", inputs=inputs)
            assert not (tmp_path / "run").exists()
        bad.write_bytes(kept)


def test_what_calibrated_promises_nothing(tmp_path: Path) -> None:
    """All samples have scaled: those that chose no layer are counted; held-out ones promise."""
    weights = {"a": models.normal(8, 8), "b": models.normal(8, 8, seed=1)}
    body = "(float[1,8] x) => (float[1,8] y) { s = MatMul(x, a) y = MatMul(s, b) }"
    model = models.save(models.with_weights(models.parse(body), weights), tmp_path)
    folder = folder_of(tmp_path / "inputs", 60)
    options = {"tol": None, "atol": 10.0, "low": "int8", "inputs": folder}
    result = tiny.search(model, tmp_path / "run", **options)
    assert result.unseen is not None and result.unseen.calibrating is not None
    told = result.unseen
    assert (60, 0, None) == (told.took_part, told.judged, told.alike)
    assert Calibrating(judged=60 - len(pool_of(range(60), 0)), failed=0) == told.calibrating
    held = tiny.search(model, tmp_path / "held", holdout=10, **options).unseen
    assert held is not None and held.calibrating is not None
    assert (50, 10) == (held.took_part, held.judged)
    assert 50 - len(pool_of(range(50), 0)) == held.calibrating.judged
