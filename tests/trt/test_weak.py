"""Weak typing: which TensorRT layers a kept ONNX node stands for, on networks of the real parser.

TensorRT-RTX parses as TensorRT does, but cannot mark layers; the few lines that mark run on layers
written down here, whose attributes `test_bindings` finds in the libraries that can.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from models import parse
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.backends.tensorrt.weak import layers_of, mark_high, to_mark
from precision_bisect.isolation.described import Survey
from precision_bisect.layer_table import LayerName
from precision_bisect.protocols import BackendFailure
from precision_bisect.trial import TrialStatus
from precision_bisect.typed.pinning import may_run_high


def network_of(rtx: Flavour, model: onnx.ModelProto, names: Sequence[str]) -> Any:
    """Return builder, network and parser, which must live together; nodes are named in order."""
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    with collected(rtx):
        from polygraphy.backend.trt import NetworkFromOnnxBytes

        return NetworkFromOnnxBytes(model.SerializeToString())()


def marked(rtx: Flavour, body: str, names: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Return the names of the TensorRT layers that keeping these nodes would mark."""
    held = network_of(rtx, parse(body), names)
    return [layer.name for layer in to_mark(layers_of(held[1]), kept, rtx.module)]


def test_one_node_can_be_several_layers(rtx: Flavour) -> None:
    """A Gemm with a bias is a product and a sum, and keeping it means both."""
    body = (
        "(float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y)"
        " { h = Gemm(x, w, b) y = Relu(h) }"
    )
    assert ["gemm", "gemm_0"] == marked(rtx, body, ["gemm", "relu"], ["gemm"])
    assert ["relu"] == marked(rtx, body, ["gemm", "relu"], ["relu"])


def test_layers_of_one_name_are_told_apart_by_their_node(rtx: Flavour) -> None:
    """A node called as TensorRT calls a part of another one is still only itself."""
    body = (
        "(float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y)"
        " { h = Gemm(x, w, b) y = Relu(h) }"
    )
    assert 1 == len(marked(rtx, body, ["gemm", "gemm_0"], ["gemm_0"]))
    assert 2 == len(marked(rtx, body, ["gemm", "gemm_0"], ["gemm"]))


@pytest.mark.parametrize("name", ["a:b, c 'q' \"z\" *", "(Unnamed Layer* 0) [Shuffle]", "x]"])
def test_any_name_is_found(rtx: Flavour, name: str) -> None:
    """Names with commas, quotes, brackets and wildcards lead to their layer."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    assert [name] == marked(rtx, body, ["first", name], [name])


def test_a_node_without_a_name_is_named_after_its_output(rtx: Flavour) -> None:
    """TensorRT's parser names such a node as the model's layer table does."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    assert ["node_of_h"] == marked(rtx, body, ["", ""], ["node_of_h"])


def test_equal_names_share_their_layers(rtx: Flavour) -> None:
    """TensorRT renames a layer of equal name, and its metadata keep the node's: both are found."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    assert ["dup", "dup_0"] == marked(rtx, body, ["dup", "dup"], ["dup"])


def test_shape_arithmetic_and_integers_are_never_marked(rtx: Flavour) -> None:
    """Shapes, indices and constants would fail the build when marked."""
    body = (
        "(float[N, 8] x) => (float[N, 8] y) { s = Shape(x) k = Constant<value = int64[1] {2}>()"
        " t = Add(s, s) u = Sub(t, s) r = Reshape(x, u) y = Softmax(r) }"
    )
    names = ["shape", "constant", "add", "sub", "reshape", "softmax"]
    assert ["reshape", "softmax"] == marked(rtx, body, names, names)


def test_floats_that_steer_a_shape_are_never_marked(rtx: Flavour) -> None:
    """The scales of a Resize can be computed; they are shape arithmetic, though in floats."""
    body = (
        "(float[1,1,N,M] x) => (float[1,1,P,Q] y) { s = Shape(x) f = Cast<to=1>(s) d = Div(f, f)"
        " e = Add(d, d) y = Resize(x, , e) }"
    )
    names = ["shape", "cast", "div", "add", "resize"]
    assert ["resize"] == marked(rtx, body, names, names)


def test_a_layer_with_integers_beside_floats_is_marked(rtx: Flavour) -> None:
    """TopK compares floats and returns integers, too: its precision counts."""
    body = (
        "(float[4, 8] x) => (float[4, 2] y, int64[4, 2] i)"
        " { k = Constant<value = int64[1] {2}>() y, i = TopK(x, k) }"
    )
    assert ["topk"] == marked(rtx, body, ["constant", "topk"], ["topk"])


def test_nodes_of_subgraphs_are_others(rtx: Flavour) -> None:
    """A node inside a branch never passes for a node of the main graph, nor does the If."""
    body = (
        "(float[1, 4] x, bool c) => (float[1, 4] y) { h = If(c) <"
        "then_branch = t () => (float[1, 4] o) { o = Relu(x) },"
        "else_branch = e () => (float[1, 4] p) { p = Tanh(x) }> y = Add(h, h) }"
    )
    model = parse(body)
    for attribute in model.graph.node[0].attribute:
        attribute.g.node[0].name = "same"
    held = network_of(rtx, model, ["choice", "same"])
    layers = to_mark(layers_of(held[1]), ["choice", "same"], rtx.module)
    assert ["ELEMENTWISE"] == [layer.type.name for layer in layers]


class WritableLayer:
    """A layer as TensorRT 8.6 to 10.x has it, with one output per given type."""

    def __init__(self, *types: str) -> None:
        self.precision: Any = None
        self.output_types: dict[int, Any] = {}
        self.num_outputs = len(types)
        self._outputs = [SimpleNamespace(dtype=SimpleNamespace(name=name)) for name in types]

    def get_output(self, index: int) -> Any:
        """Return an output tensor."""
        return self._outputs[index]

    def set_output_type(self, index: int, dtype: Any) -> None:
        """Note what was asked for."""
        self.output_types[index] = dtype


def test_marking_asks_for_computation_and_outputs(rtx: Flavour) -> None:
    """Precision alone would leave the outputs open; integer outputs stay integers."""
    layer, fp32 = WritableLayer("FLOAT", "INT32"), rtx.module.float32
    mark_high([layer], rtx.module)
    assert (fp32, {0: fp32}) == (layer.precision, layer.output_types)


class MarkableNetwork:
    """A network of TensorRT-RTX's parser, whose layers take marks as TensorRT's do."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.layers = [
            MarkableLayer(network.get_layer(index)) for index in range(network.num_layers)
        ]
        self.num_layers = network.num_layers
        self.num_inputs = network.num_inputs
        self.get_input = network.get_input

    def get_layer(self, index: int) -> Any:
        """Return a layer."""
        return self.layers[index]


class MarkableLayer:
    """A real layer with the attributes that only TensorRT up to 10.x has."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.precision: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def set_output_type(self, index: int, dtype: Any) -> None:
        """Take the mark."""


def test_kept_layers_that_tensorrt_does_not_have_are_told(rtx: Flavour) -> None:
    """A kept name that no layer of TensorRT comes from is listed; the others are marked."""
    held = network_of(
        rtx,
        parse("(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"),
        ["mul", "tanh"],
    )
    network, unmarked = MarkableNetwork(held[1]), list[LayerName]()
    kept = (LayerName("mul"), LayerName("gone"))
    prepare_network(rtx, Marks(kept=kept, low="fp16"), unmarked, network)
    assert ["gone"] == unmarked
    assert ["mul"] == [layer.name for layer in network.layers if layer.precision is not None]


def test_a_plan_of_which_nothing_can_be_marked_is_not_built(rtx: Flavour) -> None:
    """Its engine would be that of the plan that keeps nothing, and its verdict that one's."""
    held = network_of(rtx, parse("(float[4] x) => (float[4] y) { y = Tanh(x) }"), ["tanh"])
    with pytest.raises(BackendFailure) as caught:
        prepare_network(rtx, Marks(kept=(LayerName("gone"),), low="fp16"), [], held[1])
    assert TrialStatus.BUILD_FAILED is caught.value.outcome.status
    assert "no layer to mark for any kept layer, such as 'gone'" in caught.value.outcome.message


@pytest.mark.parametrize(("typing", "said"), [("weak", True), ("strong", False)])
def test_a_run_says_that_low_layers_may_run_high(typing: str, said: bool) -> None:
    """Weak typing allows the low type where layers are not kept, and asks for it in none."""
    backend = Survey(name="tensorrt", emulated=False, said={"typing": typing}, stuck={})
    assert said == may_run_high(backend, "bf16").startswith(
        "weak typing allows BF16 in the layers"
    )
