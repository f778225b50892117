"""Weak typing: which TensorRT layers a kept ONNX node stands for, on networks of the real parser.

TensorRT-RTX parses as TensorRT does, but its layers take no marks: here they note them.
`test_bindings` finds what is noted in the libraries that have it.
"""

from collections.abc import Sequence

import onnx
import pytest

from models import parse
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.weak import mark, to_mark
from precision_bisect.execution.evaluator_spec import Survey
from precision_bisect.graphs.typed.pinning import may_run_high
from precision_bisect.layer_table import LayerName
from precision_bisect.protocols import BackendFailure
from precision_bisect.trial import TrialStatus
from weak_networks import Parsed, markable, parsed, told_by_file


def network_of(rtx: Flavour, model: onnx.ModelProto, names: Sequence[str]) -> Parsed:
    """Return the network of a model whose nodes are named in order."""
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return parsed(rtx.module, model)


def marked(rtx: Flavour, body: str, names: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Return the names of the TensorRT layers that keeping these nodes would mark."""
    model = parse(body)
    held = network_of(rtx, model, names)
    found = to_mark(held.network, told_by_file(model.graph, *kept))
    return [layer.name for layers in found.values() for layer in layers]


def test_one_node_can_be_several_layers(rtx: Flavour) -> None:
    """A Gemm with a bias is a product, a sum, and a bias of another shape: all of it is kept."""
    body = (
        "(float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y)"
        " { h = Gemm(x, w, b) y = Relu(h) }"
    )
    found = ["gemm", "ONNXTRT_Broadcast", "gemm_0"]
    assert found == marked(rtx, body, ["gemm", "relu"], ["gemm"])
    assert ["relu"] == marked(rtx, body, ["gemm", "relu"], ["relu"])


def test_layers_of_one_name_are_told_apart_by_their_node(rtx: Flavour) -> None:
    """A node called as TensorRT calls a part of another one is still only itself."""
    body = (
        "(float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y)"
        " { h = Gemm(x, w, b) y = Relu(h) }"
    )
    assert 1 == len(marked(rtx, body, ["gemm", "gemm_0"], ["gemm_0"]))
    assert 3 == len(marked(rtx, body, ["gemm", "gemm_0"], ["gemm"]))


@pytest.mark.parametrize("name", ["a:b, c 'q' \"z\" *", "(Unnamed Layer* 0) [Shuffle]", "x]"])
def test_any_name_is_found(rtx: Flavour, name: str) -> None:
    """Names with commas, quotes, brackets and wildcards lead to their layer."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    assert [name] == marked(rtx, body, ["first", name], [name])


def test_a_node_without_a_name_is_named_after_its_output(rtx: Flavour) -> None:
    """TensorRT's parser names such a node as the model's layer table does."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    held = network_of(rtx, parse(body), ["", ""])
    (layer,) = to_mark(held.network, {"node_of_h": ("fp32", ("x",), ("h",))})["node_of_h"]
    assert "node_of_h" == layer.name


def test_equal_names_share_their_layers(rtx: Flavour) -> None:
    """TensorRT renames a layer of equal name, and its metadata keep the node's: both are found."""
    body = "(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }"
    assert ["dup", "dup_0"] == marked(rtx, body, ["dup", "dup"], ["dup"])


def test_shape_arithmetic_and_integers_are_never_marked(rtx: Flavour) -> None:
    """Shapes and indices would fail the build when marked."""
    body = (
        "(float[N, 8] x) => (float[N, 8] y) { s = Shape(x) k = Constant<value = int64[1] {2}>()"
        " t = Add(s, s) u = Sub(t, s) r = Reshape(x, u) y = Softmax(r) }"
    )
    names = ["shape", "constant", "add", "sub", "reshape", "softmax"]
    found = [name for name in marked(rtx, body, names, names) if not name.startswith("ONNXTRT")]
    assert ["reshape", "softmax"] == found


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


def test_a_layer_that_compares_floats_is_marked(rtx: Flavour) -> None:
    """What is compared is rounded before, if the comparison may be low; its result is no float."""
    body = "(float[4] x) => (bool[4] y) { h = Tanh(x) y = Greater(h, x) }"
    model = parse(body)
    held = network_of(rtx, model, ["tanh", "greater"])
    with markable(rtx.module) as noted:
        high = told_by_file(model.graph, "greater")
        prepare_network(Marks(kept=(), high=high, low="fp16"), [], held.network)
    assert ({"greater": "FLOAT"}, {}) == (noted.precision, noted.outputs)


def test_constants_are_marked_where_only_kept_layers_read_them(rtx: Flavour) -> None:
    """A constant that a low layer reads, too, may be low: the mark would be one for both."""
    body = (
        "(float[4] x) => (float[4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}>"
        " { h = Mul(x, a) g = Add(h, a) y = Sub(g, b) }"
    )
    assert ["sub", "b"] == sorted(marked(rtx, body, ["mul", "add", "sub"], ["sub"]), reverse=True)
    assert ["add"] == marked(rtx, body, ["mul", "add", "sub"], ["add"])
    found = marked(rtx, body, ["mul", "add", "sub"], ["mul", "add"])
    assert ["a", "add", "mul"] == sorted(found)


def test_a_constant_of_two_types_is_not_marked(rtx: Flavour) -> None:
    """What layers of two types read has no one type; what one of them reads alone has."""
    model = parse(
        "(float[4] x) => (float[4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}>"
        " { h = Mul(x, a) g = Add(h, a) y = Sub(g, b) }"
    )
    names = ["mul", "add", "sub"]
    held = network_of(rtx, model, names)
    high = told_by_file(model.graph, *names)
    of_two = {name: (("bf16" if name == "add" else "fp32"), *high[name][1:]) for name in high}
    found = [layer.name for layers in to_mark(held.network, of_two).values() for layer in layers]
    assert ["add", "b", "mul", "sub"] == sorted(found)
    every = [layer.name for layers in to_mark(held.network, high).values() for layer in layers]
    assert ["a", *sorted(found)] == sorted(every)


def test_marking_asks_for_computation_and_outputs(rtx: Flavour) -> None:
    """Precision alone would leave the outputs open; integer outputs stay integers."""
    body = (
        "(float[4, 8] x) => (float[4, 2] y, int64[4, 2] i)"
        " { k = Constant<value = int64[1] {2}>() y, i = TopK(x, k) }"
    )
    held = network_of(rtx, parse(body), ["constant", "topk"])
    (layer,) = [each for each in held.layers if each.name == "topk"]
    with markable(rtx.module) as noted:
        mark(layer, "fp32")
    assert ({"topk": "FLOAT"}, {"topk": {0: "FLOAT"}}) == (noted.precision, noted.outputs)


def test_kept_layers_that_tensorrt_does_not_have_are_told(rtx: Flavour) -> None:
    """A kept name that no layer of TensorRT comes from is listed; the others are marked."""
    model = parse("(float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }")
    held, unmarked = network_of(rtx, model, ["mul", "tanh"]), list[LayerName]()
    kept = (LayerName("mul"), LayerName("gone"))
    marks = Marks(kept=kept, high=told_by_file(model.graph, "mul"), low="fp16")
    with markable(rtx.module) as noted:
        prepare_network(marks, unmarked, held.network)
    assert ["gone"] == unmarked
    assert {"mul": "FLOAT"} == noted.precision


def test_a_plan_of_which_nothing_can_be_marked_is_not_built(rtx: Flavour) -> None:
    """Its engine would be that of the plan that keeps nothing, and its verdict that one's."""
    held = network_of(rtx, parse("(float[4] x) => (float[4] y) { y = Tanh(x) }"), ["tanh"])
    marks = Marks(kept=(LayerName("gone"),), high={}, low="fp16")
    with pytest.raises(BackendFailure) as caught:
        prepare_network(marks, [], held.network)
    assert TrialStatus.BUILD_FAILED is caught.value.outcome.status
    assert "no layer to mark for any kept layer, such as 'gone'" in caught.value.outcome.message


@pytest.mark.parametrize(("typing", "said"), [("weak", True), ("strong", False)])
def test_a_run_says_that_low_layers_may_run_high(typing: str, said: bool) -> None:
    """Weak typing allows the low type where layers are not kept, and asks for it in none."""
    backend = Survey(name="tensorrt", emulated=False, said={"typing": typing}, stuck={})
    assert said == may_run_high(backend, "bf16").startswith(
        "weak typing allows BF16 in the layers"
    )
