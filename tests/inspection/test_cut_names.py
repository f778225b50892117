"""Verdicts where TensorRT 10 cuts what its kernels compute to three letters."""

from pathlib import Path

import pytest

from inspection import real_texts as real
from inspection.engines import DEMOTED, HONOURED, UNSEEN
from inspection.judged import FP16, chain, verdicts, words
from models import keeping
from precision_bisect.backends.inspection.engine_kernels import GraphNodes, find_kernels
from precision_bisect.backends.inspection.engine_layers import EngineLayer, parse_layers
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.graphs.typed.rewrite import TypedWriter


def kernel(name: str, *nodes: str) -> EngineLayer:
    """Return a generated kernel of this name that reads and writes FP16."""
    tensor = "{ Name: t, Dimensions: [8,8], Format/Datatype: Half }"
    listed = "".join(f"[ONNX Layer: {node}]" for node in nodes)
    line = f"Name: {name}, LayerType: kgen, Inputs: [ {tensor}], Outputs: [ {tensor}]"
    (layer,) = parse_layers(real.message(f"{line}, StreamId: 0, Metadata: {listed}"))
    return layer


@pytest.mark.parametrize("name", real.MOVING_KERNELS)
def test_cut_names_of_moves(tmp_path: Path, name: str) -> None:
    """A kernel that only moves values is known by three letters, unless it may resize."""
    graph = GraphNodes(chain(tmp_path, {"k": "Exp"}, {}).proto)
    (found,) = find_kernels(graph, [kernel(name, "k")])
    assert found.moves_only
    graph.nodes[0].op_type = "Resize"
    (found,) = find_kernels(graph, [kernel(name, "k")])
    assert found.moves_only is ("Res" not in name)


@pytest.mark.parametrize("name", real.CONVERTING_KERNELS)
def test_cut_names_of_conversions(tmp_path: Path, name: str) -> None:
    """A conversion is known by three letters: no single type is said of such a kernel."""
    model = chain(tmp_path, {"k": "Div"}, {"k": [(8,)]})
    (found,) = find_kernels(GraphNodes(model.proto), [kernel(name, "k")])
    assert not found.converts_nothing
    assert "Cast" in found.operations
    assert {"k": UNSEEN} == verdicts(model, [kernel(name, "k")])


@pytest.mark.parametrize(
    ("op_type", "name", "expected"),
    [
        ("Sigmoid", "__myl_Sig_myl0_1", DEMOTED),
        ("Sigmoid", "__myl_CasSigCas_myl0_1", UNSEEN),
        ("Sigmoid", "__myl_CasSig_myl0_1", UNSEEN),
        ("Sigmoid", "__myl_Tan_myl0_1", UNSEEN),
        ("Sigmoid", "__myl_SigEtc_myl0_1", UNSEEN),
        ("Relu", "__myl_Res_myl0_1", UNSEEN),
        ("ReduceMean", "__myl_Mea_myl0_1", UNSEEN),
    ],
)
def test_cut_names_under_weak_typing(
    tmp_path: Path, op_type: str, name: str, expected: str
) -> None:
    """A layer is demoted in a low kernel that shows it and converts nothing, else unseen."""
    model = chain(tmp_path, {"k": op_type}, {})
    assert {"k": expected} == verdicts(model, [kernel(name, "k")])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__myl_CasExpCas_myl0_1", HONOURED),
        ("__myl_CasCasExpCas_myl0_1", UNSEEN),
        ("__myl_CasExp_myl0_1", UNSEEN),
        ("__myl_Exp_myl0_1", DEMOTED),
    ],
)
def test_cut_names_under_strong_typing(tmp_path: Path, name: str, expected: str) -> None:
    """Conversions are counted by three letters as by four."""
    model = chain(tmp_path, {"a": "Sin", "k": "Exp", "b": "Cos"}, {})
    plan = keeping(model, "k")
    typed = TypedWriter(model, FP16).write(plan)
    casts = [node.name for node in typed.proto.graph.node if node.op_type == "Cast"]
    borders = [name for name in casts if "x/" not in name and "/t2/" not in name]
    layers = [kernel(name, "k", *borders)]
    assert {"k": expected} == words(judge_layers(model, plan, typed, layers, FP16))


@pytest.mark.parametrize(
    ("op_type", "name", "here"),
    [
        ("Sin", "__myl_SinCasExpCas_myl0_1", HONOURED),
        ("Erf", "__myl_CasErfCasCasExpCas_myl0_1", UNSEEN),
        ("Div", "__myl_DivCasExpCas_myl0_1", UNSEEN),
    ],
)
def test_conversions_that_low_operators_bring(
    tmp_path: Path, op_type: str, name: str, here: str
) -> None:
    """How many they bring is known for TensorRT-RTX: elsewhere counting says nothing there."""
    weights: dict[str, list[tuple[int, ...]]] = {"a": [(8,)]} if op_type == "Div" else {}
    model = chain(tmp_path, {"z": "Tan", "a": op_type, "k": "Exp", "b": "Cos"}, weights)
    plan = keeping(model, "k")
    typed = TypedWriter(model, FP16).write(plan)
    casts = [node.name for node in typed.proto.graph.node if node.op_type == "Cast"]
    borders = [name for name in casts if "x/" not in name and "/t3/" not in name]
    layers = [kernel(name, "a", "k", *borders)]
    found = [
        words(judge_layers(model, plan, typed, layers, FP16, rtx=rtx)) for rtx in (True, False)
    ]
    assert [{"k": HONOURED}, {"k": here}] == found


@pytest.mark.parametrize(
    ("tactic", "expected"), [("", UNSEEN), ("sm80_xmma_gemm_f16f16_f16f16_f16_nn_n", DEMOTED)]
)
def test_a_fusion_whose_name_leaves_out_operations(
    tmp_path: Path, tactic: str, expected: str
) -> None:
    """`__myl_Fc` may be a product, a sum and more: of these only the product's tactic tells."""
    nodes = {"k": "MatMul", "add": "Add"}
    model = chain(tmp_path, nodes, {"k": [(8, 8)], "add": [(8,)]})
    (layer,) = parse_layers(
        real.message(
            "Name: __myl_Fc_myl2_7, LayerType: fusion, Inputs: [ { Name: t, Dimensions: [8,8], "
            "Format/Datatype: Half }], Outputs: [ { Name: u, Dimensions: [8,8], Format/Datatype: "
            f"Half }}], TacticName: {tactic}, StreamId: 0, Metadata: "
            "[ONNX Layer: k][ONNX Layer: add]"
        )
    )
    assert {"k": expected, "add": UNSEEN} == verdicts(model, [layer])
