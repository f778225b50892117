"""scales.json: scales come back bit for bit, and a damaged file is one line."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precision_bisect.errors import RunFolderError
from precision_bisect.graphs.quantization.scales import (
    Scales,
    WeightScale,
    read_scales,
    write_scales,
)
from precision_bisect.runs.runfolder import SCALES, RunFolder

POSITIVE = st.floats(2.0**-149, 2.0**100, width=32)
VALUES = arrays.arrays(np.float32, st.integers(1, 5), elements=POSITIVE)
WEIGHTS = st.builds(WeightScale, axis=st.integers(0, 3), values=VALUES) | st.builds(
    WeightScale, axis=st.none(), values=arrays.arrays(np.float32, (), elements=POSITIVE)
)


@given(
    st.dictionaries(st.text(), POSITIVE, max_size=4),
    st.dictionaries(st.text(), WEIGHTS, max_size=4),
)
def test_scales_come_back(activations: dict[str, float], weights: dict[str, WeightScale]) -> None:
    """Whatever the names: the same figures, axes and shapes."""
    with tempfile.TemporaryDirectory() as place:
        write_scales(RunFolder(Path(place)), Scales(activations=activations, weights=weights))
        found = read_scales(Path(place))
    assert activations == found.activations
    assert weights.keys() == found.weights.keys()
    for name, scale in weights.items():
        assert (scale.axis, scale.values.shape) == (
            found.weights[name].axis,
            found.weights[name].values.shape,
        )
        np.testing.assert_array_equal(scale.values, found.weights[name].values)


DAMAGED: list[Any] = [
    [],
    {},
    {"activations": [], "weights": {}},
    {"activations": {"x": "1"}, "weights": {}},
    {"activations": {"x": 0}, "weights": {}},
    {"activations": {"x": True}, "weights": {}},
    {"activations": {"x": -1.0}, "weights": {}},
    {"activations": {"x": float("inf")}, "weights": {}},
    {"activations": {}, "weights": {"w": [1.0]}},
    {"activations": {}, "weights": {"w": {"axis": 0}}},
    {"activations": {}, "weights": {"w": {"axis": 0, "values": []}}},
    {"activations": {}, "weights": {"w": {"axis": -1, "values": [1.0]}}},
    {"activations": {}, "weights": {"w": {"axis": "0", "values": [1.0]}}},
    {"activations": {}, "weights": {"w": {"axis": None, "values": [1.0, 2.0]}}},
    {"activations": {}, "weights": {"w": {"axis": 0, "values": [None]}}},
]


@pytest.mark.parametrize("plain", DAMAGED, ids=str)
def test_what_holds_no_scales_is_named(plain: Any, tmp_path: Path) -> None:
    """A file that was edited or cut off is named in one line, with what to do."""
    (tmp_path / SCALES).write_text(json.dumps(plain))
    with pytest.raises(RunFolderError, match="is damaged: it holds no scales") as error:
        read_scales(tmp_path)
    assert "run the search again" in error.value.hint


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_named(content: bytes, tmp_path: Path) -> None:
    """So is a file that is none at all."""
    (tmp_path / SCALES).write_bytes(content)
    with pytest.raises(RunFolderError, match="it holds no scales"):
        read_scales(tmp_path)
