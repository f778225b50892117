"""Verdicts from what inspectors of other libraries and versions say, without a build."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inspection.engines import DEMOTED, HONOURED, UNSEEN
from models import keeping, load_text
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    parse_json,
)
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.graphs.typed.pinning import pin
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import Form, Pair
from precision_bisect.trial import LayerHonour

BODY = (
    "(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)"
    " <float[2, 2, 1, 1] w = {1, 2, 3, 4}, float[2] v = {1, 2}> {"
    " [conv] a = Conv(x, w, v) [relu] b = Relu(a) [exp] c = Exp(b) [soft] y = Softmax(c) }"
)
ADDITIONS = (
    "(float[3] x) => (float[3] y) <float[3] p = {1, 2, 3}, float[3] q = {4, 5, 6}> {"
    " [first] a = Add(x, p) [second] b = Add(a, q) [norm] y = LpNormalization(b) }"
)
PRODUCT = (
    "(float[2, 2] x) => (float[2, 2] y)"
    " { [e] a = Exp(x) [s] b = Sin(x) [k] c = MatMul(a, b) [t] y = Tanh(c) }"
)


def judge(
    folder: Path,
    layers: Sequence[EngineLayer],
    *kept: str,
    typed: bool = False,
    body: str = BODY,
    pair: Pair = Pair(low="fp16", high="fp32"),  # noqa: B008 - it is frozen
    opset: int = 17,
) -> list[LayerHonour]:
    """Judge an engine of these layers that should keep some layers of a graph."""
    model = load_text(body, folder, opset=opset)
    plan = keeping(model, *kept)
    graph = TypedWriter(model, pair).write(plan) if typed else None
    return judge_layers(model, plan, graph, layers, pair)


def engine_layer(kind: str, nodes: Sequence[str], types: str, *weights: str) -> EngineLayer:
    """Return a layer that reads and writes these two types, and holds weights of 4 elements."""
    read, written = (
        (EngineTensor(name="t", dtype=dtype, dims=(1, 2, 4, 4)),) for dtype in types.split()
    )
    held = tuple(EngineTensor(name="Weights", dtype=dtype, dims=(4,)) for dtype in weights)
    return EngineLayer(
        name="engine layer", kind=kind, inputs=read, outputs=written, constants=held,
        nodes=tuple(nodes),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (engine_layer("CaskConvolution", ["conv", "relu"], "fp32 fp32", "fp32"), HONOURED),
        (engine_layer("CaskConvolution", ["conv", "relu"], "fp32 fp16", "fp32"), HONOURED),
        (engine_layer("CaskConvolution", ["conv", "relu"], "fp16 fp16", "fp16"), DEMOTED),
        (engine_layer("CaskConvolution", ["conv", "relu"], "fp32 fp32", "fp16"), DEMOTED),
        (engine_layer("CaskConvolution", ["conv"], " ".join(["bf16"] * 2)), DEMOTED),
        (engine_layer("CaskConvolution", ["conv"], "fp16 fp32"), UNSEEN),
        (engine_layer("Myelin", ["conv", "exp"], "fp32 fp32", "fp16"), DEMOTED),
        (engine_layer("Myelin", ["conv", "exp"], "fp32 fp32"), UNSEEN),
        (engine_layer("Reformat", ["conv"], "fp16 fp16"), UNSEEN),
    ],
)
def test_a_weakly_typed_convolution(tmp_path: Path, layer: EngineLayer, expected: str) -> None:
    """Weights decide, then what the layer reads; what is fused or moves data shows nothing."""
    (found,) = judge(tmp_path, [layer], "conv")
    assert ("conv", expected) == (found.layer, found.honoured.value)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (engine_layer("PointWiseV2", ["exp"], "fp32 fp32"), HONOURED),
        (engine_layer("PointWiseV2", ["exp"], "fp16 fp16"), DEMOTED),
        (engine_layer("PointWiseV2", ["exp"], "fp16 fp32"), UNSEEN),
        (engine_layer("PointWiseV2", ["relu", "exp"], "fp16 fp16"), UNSEEN),
        (engine_layer("CaskConvolution", ["conv", "exp"], "fp16 fp16", "fp16"), UNSEEN),
        (engine_layer("kgen", ["exp"], "fp32 fp32"), UNSEEN),
    ],
)
def test_a_weakly_typed_elementwise_layer(
    tmp_path: Path, layer: EngineLayer, expected: str
) -> None:
    """A layer of its own shows its type; fused into a low one it may not be there at all."""
    assert [expected] == [entry.honoured.value for entry in judge(tmp_path, [layer], "exp")]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (engine_layer("correlation", ["conv"], "fp16 fp16", "fp16"), HONOURED),
        (engine_layer("correlation", ["conv"], "fp32 fp16", "fp32"), HONOURED),
        (engine_layer("correlation", ["conv"], "int8 fp16", "int8"), DEMOTED),
        (engine_layer("correlation", ["conv"], "fp8 fp16", "fp8"), DEMOTED),
        (engine_layer("correlation", ["conv"], "int8 int8"), DEMOTED),
        (engine_layer("correlation", ["conv"], "fp16 bf16", "bf16"), DEMOTED),
        (engine_layer("correlation", ["conv"], "int8 fp16"), UNSEEN),
    ],
)
def test_a_convolution_that_should_stay_fp16(
    tmp_path: Path, layer: EngineLayer, expected: str
) -> None:
    """FP16 and FP32 honour it; INT8, FP8 and the other 16-bit type do not."""
    pair = Pair(low="int8", high="fp16")
    (found,) = judge(tmp_path, [layer], "conv", pair=pair)
    assert expected == found.honoured.value


def test_layers_of_a_rung_above_are_judged_too(tmp_path: Path) -> None:
    """What is fixed to FP32 above an FP16 high type must compute in FP32."""
    model = load_text(BODY, tmp_path)
    model = pin(model, {LayerName("exp"): "a rung"}, Form(stored="fp32"))
    layers = [engine_layer("PointWiseV2", ["exp"], types) for types in ("fp16 fp16",)]
    plan, pair = keeping(model, "conv"), Pair(low="int8", high="fp16")
    layers.append(engine_layer("correlation", ["conv"], "fp16 fp16", "fp16"))
    judged = judge_layers(model, plan, None, layers, pair)
    assert [("conv", HONOURED), ("exp", DEMOTED)] == [(j.layer, j.honoured.value) for j in judged]


def test_engine_layers_that_disagree(tmp_path: Path) -> None:
    """A node that is FP32 in one engine layer and low in another is not observable."""
    layers = [engine_layer("PointWiseV2", ["exp"], types) for types in ("fp32 fp32", "fp16 fp16")]
    (found,) = judge(tmp_path, layers, "exp")
    assert (UNSEEN, "the engine layers that hold it do not agree.") == (
        found.honoured.value,
        found.evidence,
    )


def test_weights_outrank_a_tail(tmp_path: Path) -> None:
    """The type of the weights decides, whatever a further layer that lists the node shows."""
    layers = [
        engine_layer("CaskConvolution", ["conv"], "fp16 fp16", "fp16"),
        engine_layer("PointWiseV2", ["conv"], "fp32 fp32"),
    ]
    assert [DEMOTED] == [entry.honoured.value for entry in judge(tmp_path, layers, "conv")]


def test_names_without_details_show_nothing(tmp_path: Path) -> None:
    """Where the engine lists names only, every layer is not observable, in network order."""
    found = judge(tmp_path, parse_json('{"Layers": ["conv + relu", "soft"]}'), "soft", "conv")
    assert [("conv", UNSEEN), ("soft", UNSEEN)] == [(f.layer, f.honoured.value) for f in found]
    assert {"the engine gives no details of its layers."} == {f.evidence for f in found}


def test_evidence_is_one_printable_line(tmp_path: Path) -> None:
    """Names out of a model cannot bring line breaks or escape codes to a terminal."""
    layer = EngineLayer(name="\x1b[31m\nname", kind="kgen", nodes=("exp",))
    (found,) = judge(tmp_path, [layer], "exp")
    assert found.evidence.isprintable()


@pytest.mark.parametrize(
    ("name", "index_type", "expected"),
    [
        ("__myl_CastExpCast_myl0_1", "bool", HONOURED),
        ("__myl_CastExpCast_myl0_1", "int64", UNSEEN),
        ("__myl_CastCastExpCast_myl0_1", "bool", UNSEEN),
        ("__myl_CastExpEtc_myl0_1", "bool", UNSEEN),
        ("__myl_CastExpCastEtc_myl0_1", "bool", UNSEEN),
        ("__myl_CastExp_myl0_1", "bool", UNSEEN),
        ("__myl_Exp_myl0_1", "bool", DEMOTED),
        ("__myl_ExpEtc_myl0_1", "bool", UNSEEN),
        ("__myl_One_Exp_myl0_1", "bool", DEMOTED),
        ("__myl_One_CastExpCast_myl0_1", "bool", HONOURED),
        ("__myl_Relu_myl0_1", "bool", UNSEEN),
        ("_gemm_mha_v2_myl0_1", "bool", UNSEEN),
    ],
)
def test_conversions_in_a_generated_kernel(
    tmp_path: Path, name: str, index_type: str, expected: str
) -> None:
    """Both Casts of a kept layer must be in the kernel; none, and low data, is a demotion."""
    casts = ["precision_bisect/cast/b/fp32", "precision_bisect/cast/c/fp16"]
    tensor = EngineTensor(name="t", dtype="fp16", dims=(32,))
    index = EngineTensor(name="i", dtype=index_type, dims=(32,))
    layer = EngineLayer(
        name=name, kind="kgen", inputs=(tensor, index), outputs=(tensor,), nodes=("exp", *casts)
    )
    assert [expected] == [f.honoured.value for f in judge(tmp_path, [layer], "exp", typed=True)]


def test_a_cast_that_no_layer_lists_counts(tmp_path: Path) -> None:
    """A kernel that lists one Cast of a kept layer must do the one that nobody lists as well."""
    tensor = EngineTensor(name="t", dtype="fp16", dims=(32,))
    honours = []
    for operations in ("CastExpCast", "CastExp"):
        layer = EngineLayer(
            name=f"__myl_{operations}_myl0_1",
            kind="kgen",
            inputs=(tensor,),
            outputs=(tensor,),
            nodes=("exp", "precision_bisect/cast/b/fp32"),
        )
        honours += [f.honoured.value for f in judge(tmp_path, [layer], "exp", typed=True)]
    assert [HONOURED, UNSEEN] == honours


def generated(operations: str, nodes: Sequence[str], *constants: EngineTensor) -> EngineLayer:
    """Return a generated kernel that reads and writes FP16."""
    tensors = (EngineTensor(name="t", dtype="fp16", dims=(32,)),)
    return EngineLayer(
        name=f"__myl_{operations}_myl0_1",
        kind="runtime_fusion",
        inputs=tensors,
        outputs=tensors,
        constants=constants,
        nodes=tuple(nodes),
    )


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"__mye1": "fp32", "__mye2": "fp32"}, HONOURED),
        ({"__mye1": "fp16", "__mye2": "fp16"}, DEMOTED),
        ({"__mye1": "fp32", "__mye2": "fp16"}, UNSEEN),
        ({"__mye1": "fp32"}, UNSEEN),
        ({"q_constantFloat_myl0": "fp32", "__mye2": "fp16"}, HONOURED),
        ({"q_constantHalf_myl0": "fp16", "__mye2": "fp32"}, DEMOTED),
    ],
)
def test_constants_of_the_same_size(tmp_path: Path, held: dict[str, str], expected: str) -> None:
    """A constant is told from another one of its size by its name, or when all are alike."""
    constants = [EngineTensor(name=name, dtype=dtype, dims=(3,)) for name, dtype in held.items()]
    layer = generated("CastAddAdd", ["first", "second"], *constants)
    (found,) = judge(tmp_path, [layer], "second", typed=True, body=ADDITIONS)
    assert expected == found.honoured.value


def test_an_operator_never_looked_at(tmp_path: Path) -> None:
    """Conversions are not counted beside an operator that may bring its own."""
    casts = [f"precision_bisect/cast/{name}" for name in ("a/fp32", "b/fp16")]
    layer = generated("CastAddCastMul", ["second", "norm", *casts])
    (found,) = judge(tmp_path, [layer], "second", typed=True, body=ADDITIONS)
    assert UNSEEN == found.honoured.value


@pytest.mark.parametrize(
    ("operations", "expected"),
    [("FcTanh", DEMOTED), ("FcCastTanh", DEMOTED), ("CastCastFcCastTanh", UNSEEN)],
)
def test_a_product_of_two_results_in_a_fusion(
    tmp_path: Path, operations: str, expected: str
) -> None:
    """It is low when nothing was converted before it; counting conversions proves nothing here."""
    casts = [f"precision_bisect/cast/{name}" for name in ("a/fp32", "b/fp32", "c/fp16")]
    layer = generated(operations, ["k", "t", *casts])
    (found,) = judge(tmp_path, [layer], "k", typed=True, body=PRODUCT)
    assert expected == found.honoured.value


def test_a_foreign_node_shows_nothing(tmp_path: Path) -> None:
    """What is fused out of sight is not observable, even in an engine without a low layer."""
    every = ("conv", "relu", "exp", "soft")
    found = judge(tmp_path, [engine_layer("Myelin", every, "fp32 fp32")], *every, typed=True)
    assert {UNSEEN} == {entry.honoured.value for entry in found}


def test_a_node_belongs_to_the_layer_that_lists_it(tmp_path: Path) -> None:
    """A node between two of one engine layer is not there if another layer lists it."""
    layers = [
        engine_layer("PointWiseV2", ["conv", "exp"], "fp32 fp32"),
        engine_layer("PointWiseV2", ["relu"], "fp16 fp16"),
    ]
    assert [DEMOTED] == [entry.honoured.value for entry in judge(tmp_path, layers, "relu")]


ATTENTION = (
    "(float[1, 2, 4, 8] q) => (float[1, 2, 4, 8] y)"
    " { [e] a = Exp(q) [k] c = Attention(a, q, q) [t] y = Tanh(c) }"
)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], UNSEEN),
        (["fp32"], UNSEEN),
        (["fp32", "fp32"], HONOURED),
        (["fp32", "fp16"], DEMOTED),
        (["fp16"], DEMOTED),
    ],
    ids=str,
)
def test_an_attention_has_two_products(
    tmp_path: Path, kinds: Sequence[str], expected: str
) -> None:
    """One in FP32 says nothing of the other; one that is low says enough."""
    layers = [
        replace(engine_layer("gemm", ["k"], f"{kind} {kind}"), name=f"_gemm_myl0_{number}")
        for number, kind in enumerate(kinds)
    ]
    (found,) = judge(tmp_path, layers, "k", body=ATTENTION, opset=23)
    assert expected == found.honoured.value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__myl_Exp_myl0_0", {"exp": HONOURED, "soft": UNSEEN}),
        ("__myl_ExpReshTran_myl0_0", {"exp": HONOURED, "soft": UNSEEN}),
        ("__myl_ExpMaxrSubExpSumDivMul_myl0_0", {"exp": HONOURED, "soft": HONOURED}),
        ("__myl_ReshTran_myl0_0", {"exp": UNSEEN, "soft": UNSEEN}),
    ],
)
def test_a_kernel_that_computes_only_others_proves_nothing(
    tmp_path: Path, name: str, expected: dict[str, str]
) -> None:
    """A node that a kernel lists and does not compute was found nowhere, whatever the types."""
    layer = replace(engine_layer("kgen", ["exp", "soft"], "fp32 fp32"), name=name)
    found = judge(tmp_path, [layer], "exp", "soft")
    assert expected == {each.layer: each.honoured.value for each in found}
    assert [honour != UNSEEN for honour in expected.values()] == [each.found for each in found]
