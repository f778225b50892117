"""Real TensorRT-RTX 1.7.1 engines of real networks: what is read out of them stays the same."""

from pathlib import Path

import pytest

from inspection.golden_engines import FOLDER, NAMES, counted, read


@pytest.mark.parametrize("name", NAMES)
def test_the_verdicts_on_a_real_engine(tmp_path: Path, name: str) -> None:
    """As many kept layers are honoured, demoted and not observable as when it was built."""
    engine, model, expected = read(name, tmp_path)
    assert expected == counted(engine.verdicts(model))


def test_all_kinds_of_verdicts_are_among_them() -> None:
    """And no file is large."""
    assert 5 == len(NAMES)
    said = " ".join((FOLDER / f"{name}.json").read_text() for name in NAMES)
    assert all(f'"{verdict}": ' in said for verdict in ("honoured", "demoted", "not_observable"))
    assert max(path.stat().st_size for path in FOLDER.iterdir()) < 60_000
