"""Guards on real TensorRT-RTX engines: without one a kept layer alone is demoted, with one not.

What a layer computes in shows in the types of the data and the weights of the engine layer that
names it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.tensorrt.flavour import without_kernel
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.pinning import pin
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from rtx import build
from typed_graphs import guarded


def types_at(text: str, layer: str) -> set[str]:
    """Return the types of data and weights, scalars apart, of the products of an ONNX layer."""
    found: set[str] = set()
    for line in text.splitlines():
        kind = re.match(r"Name: .*?, LayerType: (\w+), ", line)
        if f"[ONNX Layer: {layer}]" in line and kind and kind.group(1) != "kgen":
            read = line.partition("Outputs: ")[0]
            tensors = re.findall(r"Dimensions: \[([^\]]*)\].*?Datatype: (\w+)", read)
            found.update(datatype for shape, datatype in tensors if shape != "1")
    return found


@dataclass(frozen=True)
class Case:
    """A graph whose layer `k`, and those called `k...`, are kept, and its weights by shape."""

    body: str
    weights: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Any] | None = None

    def load(self, folder: Path) -> Any:
        """Return the model."""
        weights = {name: normal(*shape) for name, shape in self.weights.items()}
        proto = with_weights(parse(self.body), {**weights, **(self.constants or {})})
        return load_model(save(proto, folder))


FLAT = "(float[64, 128] x) => (float[64, 128] y)"
IMAGE = "(float[1, 16, 8, 8] x) => (float[1, 16, n, m] y)"
ROWS = "(float[2, 32, 32] x) => (float[2, 32, 32] y)"
ONE = {"one": np.ones((), np.float32)}
DEMOTED = {
    "MatMul": Case(FLAT + "{ a = Relu(x) [k] b = MatMul(a, w) y = Relu(b) }", {"w": (128, 128)}),
    "MatMul of two": Case(
        ROWS + "{ a = Relu(x) c = Neg(x) [k] b = MatMul(a, c) y = Relu(b) }", {}
    ),
    "Gemm": Case(FLAT + "{ a = Relu(x) [k] b = Gemm(a, w) y = Relu(b) }", {"w": (128, 128)}),
    "Conv and its bias": Case(
        IMAGE + "{ a = Relu(x) [k] b = Conv(a, w, c) y = Sigmoid(b) }",
        {"w": (16, 16, 3, 3), "c": (16,)},
    ),
    "Conv and a kept Add": Case(
        IMAGE + "{ a = Relu(x) [k] b = Conv(a, w) [k2] d = Add(b, c) y = Sigmoid(d) }",
        {"w": (16, 16, 3, 3), "c": (16, 1, 1)},
    ),
    "depthwise Conv": Case(
        IMAGE + "{ a = Relu(x) [k] b = Conv<group = 16>(a, w) y = Sigmoid(b) }",
        {"w": (16, 1, 3, 3)},
    ),
    "Transpose before": Case(
        "(float[64, 128] x) => (float[128, 64] y)"
        "{ a = Relu(x) t = Transpose(a) [k] b = MatMul(t, w) y = Relu(b) }",
        {"w": (64, 64)},
    ),
    "Reshape after": Case(
        "(float[64, 128] x) => (float[8192] y)"
        "{ a = Relu(x) [k] b = MatMul(a, w) t = Reshape(b, s) y = Relu(t) }",
        {"w": (128, 128)},
        {"s": np.array([-1])},
    ),
    "kept Mul by one before": Case(
        FLAT + "{ a = Exp(x) [k2] c = Mul(a, one) [k] b = MatMul(c, w) y = Sigmoid(b) }",
        {"w": (128, 128)},
        ONE,
    ),
}
NO_BF16 = {
    "Einsum": Case(
        FLAT + '{ a = Relu(x) [k] b = Einsum<equation = "ij,jk->ik">(a, w) y = Relu(b) }',
        {"w": (128, 128)},
    ),
    "ConvTranspose": Case(
        IMAGE + "{ a = Relu(x) [k] b = ConvTranspose(a, w) y = Sigmoid(b) }",
        {"w": (16, 16, 2, 2)},
    ),
}
SAFE = {
    "behind a kept layer": Case(
        FLAT + "{ a = Exp(x) [k2] c = Neg(a) [k] b = MatMul(c, w) y = Sigmoid(b) }",
        {"w": (128, 128)},
    ),
    "at the input": Case(FLAT + "{ [k] b = MatMul(x, w) y = Relu(b) }", {"w": (128, 128)}),
    "behind a Reshape of the input": Case(
        "(float[64, 128] x) => (float[n, m] y)"
        "{ t = Reshape(x, s) [k] b = MatMul(t, w) y = Relu(b) }",
        {"w": (64, 64)},
        {"s": np.array([128, 64])},
    ),
    "on an embedding": Case(
        "(int64[32] i) => (float[32, 64] y) { e = Gather(t, i) [k] b = MatMul(e, w) y = Relu(b) }",
        {"t": (100, 64), "w": (64, 64)},
    ),
}


def types_with(case: Case, folder: Path, low: LowName, *, guard: bool) -> tuple[set[str], int]:
    """Return the types at layer `k` of the engine, and how many layers got a guard."""
    model = case.load(folder)
    kept = [name for name in model.table.names if name.startswith("k")]
    typed = TypedWriter(model, Pair(low=low, high="fp32")).write(keeping(model, *kept), guard)
    save_typed(typed, folder / "typed.onnx")
    return types_at(build(folder / "typed.onnx"), "k"), len(guarded(typed))


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("case", DEMOTED.values(), ids=DEMOTED)
def test_a_guard_keeps_a_lone_layer(tmp_path: Path, case: Case, low: LowName) -> None:
    """Alone between low layers it is demoted, weights and all; behind a guard it is not."""
    demoted, _ = types_with(case, tmp_path, low, guard=False)
    assert {{"fp16": "Half", "bf16": "BFloat16"}[low]} == demoted
    assert ({"Float"}, 1) == types_with(case, tmp_path, low, guard=True)


@pytest.mark.parametrize("case", NO_BF16.values(), ids=NO_BF16)
def test_a_guard_keeps_what_only_fp16_demotes(tmp_path: Path, case: Case) -> None:
    """The same for layers that stay FP32 with BF16, since ONNX or TensorRT lacks them there."""
    assert ({"Half"}, 0) == types_with(case, tmp_path, "fp16", guard=False)
    assert ({"Float"}, 1) == types_with(case, tmp_path, "fp16", guard=True)


@pytest.mark.parametrize("case", SAFE.values(), ids=SAFE)
def test_no_guard_where_none_is_needed(tmp_path: Path, case: Case) -> None:
    """What reads true FP32 keeps it without a guard, and gets none."""
    assert ({"Float"}, 0) == types_with(case, tmp_path, "fp16", guard=True)


def test_a_guard_is_put_in_where_there_is_doubt(tmp_path: Path) -> None:
    """A Concat of low and FP32 values that is FP32 brings low ones: its reader is guarded."""
    case = Case(
        "(float[64, 64] x) => (float[64, 128] y)"
        "{ a = Exp(x) [k2] c = Sin(x) d = Concat<axis = 1>(a, c)"
        " [k] b = MatMul(d, w) y = Sigmoid(b) }",
        {"w": (128, 128)},
    )
    assert ({"Float"}, 1) == types_with(case, tmp_path, "fp16", guard=True)


def test_a_layer_that_cannot_be_low_is_guarded(tmp_path: Path) -> None:
    """TensorRT-RTX has no transposed convolution in BF16: FP32 in every plan, and stays it."""
    model = NO_BF16["ConvTranspose"].load(tmp_path)
    model = pin(model, without_kernel("tensorrt-rtx", model, "bf16"))
    typed = TypedWriter(model, Pair(low="bf16", high="fp32")).write(keeping(model))
    save_typed(typed, tmp_path / "typed.onnx")
    assert ["k"] == guarded(typed)
    assert {"Float"} == types_at(build(tmp_path / "typed.onnx"), "k")


def test_the_second_of_a_chain_needs_no_guard(tmp_path: Path) -> None:
    """Of two kept layers in a row the first is guarded, and both stay FP32."""
    case = Case(
        FLAT + "{ a = Relu(x) [k0] b = MatMul(a, v) [k] c = MatMul(b, w) y = Relu(c) }",
        {"v": (128, 128), "w": (128, 128)},
    )
    assert ({"Float"}, 1) == types_with(case, tmp_path, "fp16", guard=True)
    assert {"Float"} == types_at(build(tmp_path / "typed.onnx"), "k0")


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_guard_lets_a_kept_recurrent_layer_build(tmp_path: Path, op: str, gates: int) -> None:
    """Right behind a Cast it cannot be built; behind a guard it can."""
    case = Case(
        "(float[5, 2, 8] x) => (float[5, 1, 2, 4] y)"
        f"{{ a = Relu(x) [k] b = {op}<hidden_size = 4>(a, w, r) y = Relu(b) }}",
        {"w": (1, 4 * gates, 8), "r": (1, 4 * gates, 4)},
    )
    with pytest.raises(AssertionError, match="shape inference"):
        types_with(case, tmp_path, "fp16", guard=False)
    assert 1 == types_with(case, tmp_path, "fp16", guard=True)[1]
