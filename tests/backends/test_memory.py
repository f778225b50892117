"""What sessions over many nodes or large weights hold on to."""

import numpy as np
import onnx
import onnx.parser
import pytest

from precision_bisect.heap import trim
from precision_bisect.ort import Checked, Session, check

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(x, w) }
"""


@pytest.mark.parametrize(
    ("nodes", "nbytes", "packs"),
    [(10, 10, True), (10, 2**31, False), (20_000, 10, False)],
)
def test_large_graphs_keep_no_packed_weights(nodes: int, nbytes: int, packs: bool) -> None:
    """A second copy of the weights is kept only where neither they nor the graph are large."""
    graph = Checked(text=b"", nodes=nodes, weights={}, folder=None, nbytes=nbytes)
    assert packs is graph.packs


def test_a_checked_graph_outlives_its_message() -> None:
    """A session needs nothing of the message that it came from; freed memory can be given back."""
    proto = onnx.parser.parse_model(TEXT)
    graph = check(proto, {})
    del proto
    trim()
    (y,) = Session(graph).run({"x": np.array([1, 2], np.float32)}).values()
    np.testing.assert_array_equal([3, 8], y)
