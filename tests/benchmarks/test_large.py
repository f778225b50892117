"""The benchmark of large models, on one of a few blocks."""

import large
import pytest

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


def test_memory_is_the_job_s_own(found: large.Figures) -> None:
    """ONNX Runtime takes more than 50 MB, the model as good as nothing, the caller 600 MB."""
    assert found.model_mb < 1
    assert 50 < found.peak_mb < found.peak_limit_mb == 3 * found.model_mb + 500
