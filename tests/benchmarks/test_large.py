"""The benchmark of large models, on one of a few blocks."""

import json
from dataclasses import replace
from pathlib import Path

import large
import pytest
from large_model import hot_blocks, make

from precision_bisect.graphs.load import load_model

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> large.Figures:
    """Return what a run on some 60 layers took, started from a process of 600 MB."""
    folder = tmp_path_factory.mktemp("large")
    ballast = b"\1" * 600_000_000
    assert ballast
    return large.measure(folder, layers=60, tokens=8, inputs=1, threads=1)


def test_the_job_keeps_what_overflows(found: large.Figures) -> None:
    """The squares and their mean in the one LayerNorm that overflows stay high, proven."""
    assert 50 == found.candidates
    assert (2, True) == (found.kept, found.minimal)
    assert found.error is not None
    assert found.error <= found.tolerance


def test_trials_are_told_apart_by_phase(found: large.Figures) -> None:
    """Every layer is ranked alone, and what the ledger holds is what the result counts."""
    assert 50 == found.phases["ranking predict"][0]

    assert found.emulated_trials == sum(n for n, _ in found.phases.values())


def test_memory_is_the_job_s_own(found: large.Figures) -> None:
    """ONNX Runtime takes more than 50 MB, the model as good as nothing, the caller 600 MB."""
    assert found.model_mb < 1
    assert 50 < found.peak_mb < found.peak_limit_mb == 3 * found.model_mb + 500


def test_either_limit_decides(found: large.Figures) -> None:
    """A run is within the limits only if both time and memory are."""
    assert found.within
    assert not replace(found, wall_s=601.0).within
    assert not replace(found, peak_mb=found.peak_limit_mb + 1).within


def test_rows_of_other_sizes_stay(found: large.Figures, tmp_path: Path) -> None:
    """A row takes the place of one with as many layers only, and rows are sorted by size."""
    out = tmp_path / "large.json"
    for row in (replace(found, candidates=500), found, replace(found, candidates=500, kept=9)):
        large.add(row, out)
    rows = json.loads(out.read_text())
    assert [(50, found.kept), (500, 9)] == [(row["candidates"], row["kept"]) for row in rows]
    assert {"numpy", "onnx", "onnxruntime", "python"} <= rows[0]["versions"].keys()


def test_the_table_shows_limits_and_load(found: large.Figures) -> None:
    """Figures stand beside their limits."""
    shown = large.table(found)
    assert "limit 600 s" in shown
    assert f"limit {found.peak_limit_mb:.0f} MB" in shown
    assert "load average" in shown


def test_the_model_is_the_same_every_time(tmp_path: Path) -> None:
    """Two models of one size are the same bytes, and have as many candidates as asked for."""
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths.append(make(tmp_path / name, 110, 4, 1)[0])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert 110 == len(load_model(paths[0]).table.candidates)


def test_overflowing_blocks_are_few_and_never_the_first() -> None:
    """Each needs a block before it that writes the outlier."""
    assert [41, 124, 208, 291] == list(hot_blocks(333))
    assert [1] == list(hot_blocks(3)) == list(hot_blocks(2))
