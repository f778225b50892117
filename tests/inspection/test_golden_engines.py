"""Real TensorRT-RTX 1.7.1 engines of real networks: what is read out of them stays the same."""

from pathlib import Path

import pytest

from inspection.golden_engines import FOLDER, NAMES, counted, read
from precision_bisect.backends.inspection.engine_layers import parse_layers
from precision_bisect.backends.tensorrt.layer_times import facts_of
from precision_bisect.runs.results.verification import EngineFacts


@pytest.mark.parametrize("name", NAMES)
def test_the_verdicts_on_a_real_engine(tmp_path: Path, name: str) -> None:
    """As many kept layers are honoured, demoted and not observable as when it was built."""
    engine, model, expected = read(name, tmp_path)
    assert expected == counted(engine.verdicts(model))


@pytest.mark.parametrize(
    ("name", "layers", "conversions", "casting"),
    [
        ("magika", 10, 0, 8),
        ("minilm", 72, 0, 24),
        ("ppocr_det-unguarded", 103, 1, 32),
        ("ppocr_rec", 72, 1, 17),
        ("resnet18", 29, 4, 14),
    ],
)
def test_what_converts(
    tmp_path: Path, name: str, layers: int, conversions: int, casting: int
) -> None:
    """Kernels of casts and moves alone are told apart from those that cast beside other work."""
    engine, _, _ = read(name, tmp_path)
    found = facts_of(5, parse_layers(engine.text))
    expected = EngineFacts(size=5, layers=layers, conversions=conversions, casting=casting)
    assert expected == found


def test_all_kinds_of_verdicts_are_among_them() -> None:
    """And no file is large."""
    assert 5 == len(NAMES)
    said = " ".join((FOLDER / f"{name}.json").read_text() for name in NAMES)
    assert all(f'"{verdict}": ' in said for verdict in ("honoured", "demoted", "not_observable"))
    assert max(path.stat().st_size for path in FOLDER.iterdir()) < 60_000
