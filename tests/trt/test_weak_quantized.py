"""A search by weak typing allows the 8-bit types of a model's own quantization, as exports do."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from models import parse, save, with_weights
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.quantization.scales import quantized_in_file
from precision_bisect.graphs.typed.high_nodes import told
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair, QuantizedName
from weak_networks import markable, parsed

INSIDE = """(float[4,8] x, bool c) => (float[4,8] y) { [if] y = If(c) <
    then_branch = yes () => (float[4,8] p) {
        [q] q = QuantizeLinear(x, s, z) [d] d = DequantizeLinear(q, s, z) [exp] p = Exp(d) },
    else_branch = no () => (float[4,8] r) { [neg] r = Neg(x) }> }"""
WEIGHT = """(float[4,8] x) => (float[4,8] y) {
    [q] q = QuantizeLinear(w, s, z) [d] d = DequantizeLinear(q, s, z) [exp] e = Exp(d)
    [mul] y = Mul(x, e) }"""
PLAIN = "(float[4,8] x) => (float[4,8] y) { [exp] e = Exp(x) [mul] y = Mul(x, e) }"


def model_of(body: str, kind: int) -> onnx.ModelProto:
    """Return a model with a zero point of this type."""
    weights = {"s": np.array(0.1, np.float32), "w": np.ones((4, 8), np.float32)}
    model = with_weights(parse(body, opset=19, ir=9), weights)
    model.graph.initializer.append(onnx.helper.make_tensor("z", kind, [], [0]))
    return model


@pytest.mark.parametrize("body", [INSIDE, WEIGHT])
@pytest.mark.parametrize(
    ("kind", "name"), [(onnx.TensorProto.INT8, "int8"), (onnx.TensorProto.FLOAT8E4M3FN, "fp8")]
)
def test_the_types_of_quantization_are_read_from_bodies_and_weights(
    body: str, kind: int, name: QuantizedName, tmp_path: Path
) -> None:
    """Wherever a QuantizeLinear stands; a model without any has none."""
    model = load_model(save(model_of(body, kind), tmp_path))
    assert (name,) == quantized_in_file(model)
    assert () == quantized_in_file(load_model(save(parse(PLAIN), tmp_path)))


@pytest.mark.parametrize("body", [INSIDE, WEIGHT])
def test_quantization_is_never_marked(rtx: Flavour, body: str, tmp_path: Path) -> None:
    """Neither in a body nor on a weight, whose node counts as a constant: what reads it is."""
    proto = model_of(body, onnx.TensorProto.INT8)
    model = load_model(save(proto, tmp_path))
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    high = told(writer.high_nodes(Plan.all_high(len(model.table.names))), model.table)
    assert {"q", "d"}.isdisjoint(high)
    held = parsed(rtx.module, proto)
    with markable(rtx.module) as noted:
        prepare_network(Marks(kept=(), high=high, low="fp16"), [], held.network)
    assert "exp" in noted.precision
    assert {"q", "d"}.isdisjoint(noted.precision)
