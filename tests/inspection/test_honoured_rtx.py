"""Verdicts on real engines of TensorRT-RTX: what is demoted, what is honoured, what is unseen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inspection.engines import DEMOTED, HONOURED, UNSEEN, Inspected, Target, inspect, load
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import Model
from precision_bisect.precisions import LowName


@dataclass(frozen=True)
class Case:
    """A graph and its weights by shape; the layers called `k...` are kept."""

    body: str
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def load(self, folder: Path) -> Model:
        """Return the model."""
        return load(self.body, folder, self.weights)

    def inspect(self, rtx: Flavour, folder: Path, target: Target) -> Inspected:
        """Build the plan and judge it."""
        model = self.load(folder)
        kept = [name for name in model.table.names if name.startswith("k")]
        return inspect(rtx, model, kept, folder, target)


def flat(nodes: str, **weights: tuple[int, ...]) -> Case:
    """Return a graph over a matrix: a low layer writes `a`, a low layer reads `b`."""
    return Case(
        f"(float[16, 32] x) => (float[n, m] y) {{ a = Exp(x) {nodes} y = Tanh(b) }}", weights
    )


def image(nodes: str, **weights: tuple[int, ...]) -> Case:
    """Return the same over an image of eight channels."""
    return Case(
        f"(float[1, 8, 6, 6] x) => (float[1, c, h, w] y) {{ a = Exp(x) {nodes} y = Tanh(b) }}",
        weights,
    )


PRODUCTS = {
    "MatMul": flat("[k] b = MatMul(a, w)", w=(32, 32)),
    "MatMul of two results": flat("c = Sin(x) t = Transpose(c) [k] b = MatMul(a, t)"),
    "Gemm without bias": flat("[k] b = Gemm(a, w)", w=(32, 16)),
    "Einsum": flat('[k] b = Einsum<equation = "ij,jk->ik">(a, w)', w=(32, 16)),
    "MatMul, Flatten, low layer": flat("[k] c = MatMul(a, w) b = Flatten(c)", w=(32, 16)),
    "MatMul, low Add": flat("[k] c = MatMul(a, w) b = Add(c, v)", w=(32, 16), v=(16,)),
    "Conv": image("[k] b = Conv(a, w)", w=(8, 8, 3, 3)),
    "Conv with bias": image("[k] b = Conv(a, w, v)", w=(8, 8, 3, 3), v=(8,)),
    "Conv by channel": image("[k] b = Conv<group = 8>(a, w)", w=(8, 1, 3, 3)),
    "Conv, low residual": image(
        "[k] c = Conv<pads = [1, 1, 1, 1]>(a, w) b = Add(c, a)", w=(8, 8, 3, 3)
    ),
    "Conv, kept Add of a constant": image(
        "[k] c = Conv(a, w) [k2] b = Add(c, v)", w=(8, 8, 3, 3), v=(8, 1, 1)
    ),
    "ConvTranspose": image("[k] b = ConvTranspose(a, w)", w=(8, 4, 2, 2)),
}

ALONE = {
    "Gemm with bias": flat("[k] b = Gemm(a, w, v)", w=(32, 16), v=(16,)),
    "MatMul and Relu": flat("[k1] c = MatMul(a, w) [k2] b = Relu(c)", w=(32, 16)),
    "two MatMuls": flat("[k1] c = MatMul(a, w) [k2] b = MatMul(c, v)", w=(32, 16), v=(16, 16)),
    "Conv and Relu": image("[k1] c = Conv(a, w) [k2] b = Relu(c)", w=(8, 8, 3, 3)),
    "MatMul that ends the graph": Case(
        "(float[16, 32] x) => (float[16, 16] y) { a = Exp(x) [k] y = MatMul(a, w) }",
        {"w": (32, 16)},
    ),
    "MatMul that begins it": Case(
        "(float[16, 32] x) => (float[16, 16] y) { [k] a = MatMul(x, w) y = Tanh(a) }",
        {"w": (32, 16)},
    ),
    "Sigmoid": flat("[k] b = Sigmoid(a)"),
    "Erf": flat("[k] b = Erf(a)"),
    "Elu, which no engine layer lists": flat("[k] b = Elu(a)"),
    "Softmax": flat("[k] b = Softmax(a)"),
    "Add of a constant": flat("[k] b = Add(a, v)", v=(32,)),
    "LayerNormalization": flat("[k] b = LayerNormalization(a, v, w)", v=(32,), w=(32,)),
    "ReduceMean": flat("[k] b = ReduceMean<axes = [1]>(a)"),
    "ReduceL2": flat("[k] b = ReduceL2<axes = [1]>(a)"),
    "BatchNormalization": image(
        "m = Abs(v) [k] b = BatchNormalization(a, w, v, w, m)", w=(8,), v=(8,)
    ),
    "InstanceNormalization": image("[k] b = InstanceNormalization(a, w, v)", w=(8,), v=(8,)),
    "AveragePool": image("[k] b = AveragePool<kernel_shape = [2, 2]>(a)"),
    "MaxPool": image("[k] b = MaxPool<kernel_shape = [2, 2]>(a)"),
    "low Conv, kept Relu": image("c = Conv(a, w) [k] b = Relu(c)", w=(8, 8, 3, 3)),
    "low MatMul, kept Add": flat("c = MatMul(a, w) [k] b = Add(c, v)", w=(32, 16), v=(16,)),
    "kept layers apart in one kernel": flat(
        "[k1] c = Sigmoid(a) d = Sin(c) [k2] e = Sqrt(d) b = Cos(e)"
    ),
    "a norm by hand": flat(
        "m = ReduceMean<axes = [1]>(a) d = Sub(a, m) [k1] s = Mul(d, d)"
        " [k2] v = ReduceMean<axes = [1]>(s) q = Sqrt(v) b = Div(d, q)"
    ),
    "a low Erf beside it": flat("e = Erf(a) [k] b = Sigmoid(e)"),
    "a low Pow beside it": flat("e = Pow(a, v) [k] b = Sigmoid(e)", v=(32,)),
    "a low ReduceL2 beside it": flat("e = ReduceL2<axes = [1]>(a) [k] b = Sigmoid(e)"),
    "a low division by a root beside it": flat(
        "m = ReduceMean<axes = [1]>(a) q = Sqrt(m) d = Div(a, q) e = Sin(d) [k] b = Sigmoid(e)"
    ),
    "a low product with a computed constant beside it": flat(
        "c = Neg(v) d = Mul(a, c) [k] b = Sigmoid(d)", v=(32,)
    ),
    "a low LayerNormalization beside it": flat(
        "e = LayerNormalization(a, v, w) [k] b = Sigmoid(e)", v=(32,), w=(32,)
    ),
}

ATTENTION = Case(
    "(float[2, 2, 32, 32] x) => (float[2, 2, 32, 32] y) {"
    " q = Exp(x) r = Sin(x) v = Cos(x) t = Transpose<perm = [0, 1, 3, 2]>(r)"
    " [k1] s = MatMul(q, t) [k2] p = Softmax(s) o = MatMul(p, v) y = Tanh(o) }"
)


@pytest.mark.parametrize("case", PRODUCTS.values(), ids=PRODUCTS)
def test_a_lone_product_is_demoted_unless_guarded(
    rtx: Flavour, tmp_path: Path, case: Case
) -> None:
    """A product alone between low layers runs low in the engine; behind a guard it runs FP32."""
    bare = case.inspect(rtx, tmp_path, Target(guard=False))
    guarded = case.inspect(rtx, tmp_path, Target(guard=True))
    assert dict.fromkeys(bare.honours, DEMOTED) == bare.honours
    assert dict.fromkeys(bare.honours, HONOURED) == guarded.honours
    assert "fp16" in bare.evidence("k")


@pytest.mark.parametrize("case", ALONE.values(), ids=ALONE)
def test_other_layers_are_honoured_without_a_guard(
    rtx: Flavour, tmp_path: Path, case: Case
) -> None:
    """Every other kept layer, and a product with FP32 next to it, is seen to run FP32."""
    honours = case.inspect(rtx, tmp_path, Target(guard=False)).honours
    assert dict.fromkeys(honours, HONOURED) == honours


@pytest.mark.parametrize("capability", ["8.9", "12.0"])
@pytest.mark.parametrize("name", ["MatMul", "Conv with bias"])
def test_verdicts_on_other_gpus(rtx: Flavour, tmp_path: Path, name: str, capability: str) -> None:
    """Engines for other compute capabilities are told apart all the same."""
    for guard, expected in ((False, DEMOTED), (True, HONOURED)):
        target = Target(guard=guard, capability=capability)
        assert {"k": expected} == PRODUCTS[name].inspect(rtx, tmp_path, target).honours


@pytest.mark.parametrize("name", ["MatMul", "Conv"])
def test_verdicts_with_bf16(rtx: Flavour, tmp_path: Path, name: str) -> None:
    """The same demotion is seen where the low type is BF16."""
    for guard, expected in ((False, DEMOTED), (True, HONOURED)):
        target = Target(guard=guard, low="bf16")
        assert {"k": expected} == PRODUCTS[name].inspect(rtx, tmp_path, target).honours


def test_fused_attention_shows_nothing(rtx: Flavour, tmp_path: Path) -> None:
    """A kept Softmax that is fused into attention is not observable, and the evidence says so."""
    body = ATTENTION.body.replace("[k1]", "[s]")
    found = Case(body).inspect(rtx, tmp_path, Target())
    assert {"k2": UNSEEN} == found.honours
    assert "_gemm_mha_v2" in found.evidence("k2")


def test_a_guard_takes_attention_apart(rtx: Flavour, tmp_path: Path) -> None:
    """With the guarded product before it kept as well, both are seen to run FP32."""
    found = ATTENTION.inspect(rtx, tmp_path, Target())
    assert {"k1": HONOURED, "k2": HONOURED} == found.honours


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_all_high_is_honoured(rtx: Flavour, tmp_path: Path, low: LowName) -> None:
    """An engine that is FP32 throughout honours every layer."""
    body = ATTENTION.body.replace("q = ", "[k3] q = ").replace("o = ", "[k4] o = ")
    honours = Case(body).inspect(rtx, tmp_path, Target(low=low)).honours
    assert dict.fromkeys(("k3", "k1", "k2", "k4"), HONOURED) == honours


def test_all_low_has_no_verdicts(rtx: Flavour, tmp_path: Path) -> None:
    """Where nothing is kept there is nothing to honour."""
    assert {} == flat("b = MatMul(a, w)", w=(32, 16)).inspect(rtx, tmp_path, Target()).honours


def test_a_layer_that_is_not_there_is_unseen(rtx: Flavour, tmp_path: Path) -> None:
    """A kept layer whose result nobody reads is not observable, and the evidence says so."""
    found = flat("[k] c = Sin(a) b = Cos(a)").inspect(rtx, tmp_path, Target())
    assert {"k": UNSEEN} == found.honours
    assert "no engine layer lists it" in found.evidence("k")
    assert [False] == [each.found for each in found.judged]


def test_beside_an_operator_never_looked_at(rtx: Flavour, tmp_path: Path) -> None:
    """Conversions are not counted in a kernel with an operator that may bring any number."""
    found = image("e = LRN<size = 3>(a) [k] b = Sigmoid(e)").inspect(rtx, tmp_path, Target())
    assert {"k": UNSEEN} == found.honours
    assert [True] == [each.found for each in found.judged]


NO_CHANGE = {
    "in a generated kernel": flat("[k] c = Max(a) b = Cos(c)"),
    "behind a low Conv": image("c = Conv(a, w) [k] d = Max(c) b = Conv(d, w)", w=(8, 8, 3, 3)),
    "beside a low one of its kind": image(
        "c = Conv(a, w) [k] d = Max(c) e = Max(d, c) b = Conv(e, w)", w=(8, 8, 3, 3)
    ),
}


@pytest.mark.parametrize("case", NO_CHANGE.values(), ids=NO_CHANGE)
def test_a_layer_that_changes_nothing_is_unseen(rtx: Flavour, tmp_path: Path, case: Case) -> None:
    """A builder drops such a layer with its Casts: that is no demotion."""
    assert {"k": UNSEEN} == case.inspect(rtx, tmp_path, Target()).honours
