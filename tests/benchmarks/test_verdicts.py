"""The reading of engine files, and what it says of a lone product with and without its guard."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verdicts
from numpy.typing import NDArray

from models import normal, parse, save, with_weights
from precision_bisect.trial import Honour

LONE = "(float[16, 64] x) => (float[16, 64] y) { a = Exp(x) [k] b = MatMul(a, w) y = Tanh(b) }"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("kind", "read"), [(np.float32, "fp32"), (np.float16, "fp16")])
def test_weights_are_found_by_their_bytes(kind: Any, read: str, turned: bool) -> None:
    """In whichever order of axes a file holds them, between other bytes."""
    weight = normal(64, 64)
    held: NDArray[Any] = np.ascontiguousarray((weight.T if turned else weight).astype(kind))
    assert read == verdicts.reading(weight, b"abcd" + held.tobytes() + b"efgh")


def test_what_is_not_there_is_unclear() -> None:
    """Folded weights, and those that FP16 holds exactly, tell nothing."""
    weight = normal(64, 64)
    assert "unclear" == verdicts.reading(weight, normal(64, 64, seed=1).tobytes())
    halves = weight.astype(np.float16).astype(np.float32)
    assert "unclear" == verdicts.reading(halves, halves.tobytes())


@pytest.mark.usefixtures("rtx")
def test_verdicts_and_file_agree(tmp_path: Path) -> None:
    """A guarded product is there in FP32, an unguarded one in FP16, as the verdicts say."""
    path = save(with_weights(parse(LONE), {"w": normal(64, 64)}), tmp_path, "lone.onnx")
    rows = []
    for each in verdicts.rows_of(path):
        assert not isinstance(each, verdicts.Failed)
        rows += [row for row in each if row.layer == "k" and row.plan.startswith("alone")]
    assert [
        ("alone", Honour.HONOURED.value, "fp32"),
        ("alone unguarded", Honour.DEMOTED.value, "fp16"),
    ] == [(row.plan, row.verdict, row.reading) for row in rows]
    assert (2, []) == (verdicts.compared(rows)["agree"], verdicts.compared(rows)["contradict"])
