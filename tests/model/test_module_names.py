"""The modules of nodes, from what PyTorch 2.13's exporters have written."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import tiny
from precision_bisect.graphs.load import at_least_opset, load_model
from precision_bisect.graphs.module_names import SCOPES, module_names
from precision_bisect.layer_table import with_module

FLOAT = onnx.TensorProto.FLOAT


@pytest.mark.parametrize(
    ("name", "reads", "module"),
    [
        ("/Tanh", "", ""),
        ("/blocks.0/norm1/Add_1", "", "blocks.0.norm1"),
        # A part of a Sequential repeats its name, and so does one inside it.
        ("/b/b.0/Gemm", "b.0.weight", "b.0"),
        ("/b/b.1/b.1.1/Erf", "", "b.1.1"),
        ("/layer1/layer1.0/conv1/Conv", "", "layer1.0.conv1"),
        # A list of the same name inside a module is told by its parameters.
        ("/a/a.0/Gemm", "a.a.0.weight", "a.a.0"),
        ("/a/a.1/a.1.0/Gemm", "a.a.1.0.weight", "a.a.1.0"),
        ("/a/Relu", "", "a"),
        # What is never called has no scope: a ModuleDict, a plain Module.
        ("/x/Gemm", "d.x.weight", "d.x"),
        ("/a/a.1/a.1.0_1/Gemm", "c.a.a.1.0.weight", "c.a.a.1.0"),
        # Called again, one module has two scopes.
        ("/shared_1/Gemm", "shared.weight", "shared"),
        ("/layer1/layer1.0/relu_1/Relu", "", "layer1.0.relu"),
        # It is of c.a, or of a: what holds both is said.
        ("/a_1/Relu", "", ""),
        # A module whose own name ends in a number.
        ("/norm_2/Mul", "norm_2.weight", "norm_2"),
        # A parameter of another module says nothing.
        ("/attn/MatMul", "attn.out_proj.weight", "attn"),
        # A batch norm went into the convolution.
        ("/layer1/layer1.0/down/down.0/Conv", "onnx::Conv_86", "layer1.0.down"),
    ],
)
def test_scopes_in_names_give_qualified_names(name: str, reads: str, module: str) -> None:
    """The exporter by TorchScript leaves scopes, which parameters complete."""
    others = [
        ("/layer1/layer1.0/relu/Relu", ""),
        ("/norm/Mul", "norm.weight"),
        ("/a/a.0_1/Gemm", "c.a.a.0.weight"),
        *[(name, reads) for name, reads in SCOPED if name != "/a_1/Relu"],
    ]
    model = exported([*others, (name, reads)], [""] * (len(others) + 1))
    named = module_names(model)
    assert named is not None
    assert module == named[name]


SCOPED = [
    ("/a/a.0/Gemm", "a.a.0.weight"),
    ("/a/a.1/a.1.0/Gemm", "a.a.1.0.weight"),
    ("/a/Relu", ""),
    ("/shared/Gemm", "shared.weight"),
    ("/b/b.0/Gemm", "b.0.weight"),
]


def test_what_names_leave_open_is_in_the_module_around() -> None:
    """A list of ModuleDicts has no scopes: what has no parameters may be of any of them."""
    nodes = {
        "/norm/Mul": ("blocks.0.norm.weight", "blocks.0.norm"),
        "/mlp/mlp.0/Gemm": ("blocks.0.mlp.0.weight", "blocks.0.mlp.0"),
        "/mlp/mlp.1/Sigmoid": ("", ""),
        "/act/Tanh": ("", ""),
        "/norm_1/Mul": ("blocks.1.norm.weight", "blocks.1.norm"),
        "/mlp/mlp.0_1/Gemm": ("blocks.1.mlp.0.weight", "blocks.1.mlp.0"),
        "/mlp/mlp.1_1/Sigmoid": ("", ""),
        "/act_1/Tanh": ("", ""),
        "/head/head.0/Gemm": ("head.0.weight", "head.0"),
        "/head/head.1/Relu": ("", "head.1"),
    }
    model = exported([(name, reads) for name, (reads, _) in nodes.items()], [""] * len(nodes))
    assert {name: module for name, (_, module) in nodes.items()} == module_names(model)


@pytest.mark.parametrize(
    ("told", "op_type", "reads", "module"),
    [
        ("['', 'blocks.0', 'blocks.0.norm1', 'layer_norm']", "Add", "", "blocks.0.norm1"),
        ("['', 'tanh']", "Tanh", "", ""),
        ("['', 'shared@1', 'linear_4']", "Gemm", "shared.weight", "shared"),
        (
            "['', 'b', 'b.0', 'b.0.1', '_native_batch_norm_legit_no_training']",
            *("Conv", "b.0.0.weight", "b.0"),
        ),
        ("['', 'head', 'linear']", "Gemm", "embedding.weight", "head"),
        ("os.system('x')", "Add", "", ""),
        ("[" * 5000, "Add", "", ""),
        ("3", "Add", "", ""),
        ("[]", "Add", "", ""),
    ],
)
def test_metadata_give_qualified_names(told: str, op_type: str, reads: str, module: str) -> None:
    """The exporter by torch.export says them; what says nothing belongs to the model itself."""
    known = "['', 'first', 'relu']"
    model = exported([("node_relu", ""), ("node_it", reads)], [known, told])
    model.graph.node[1].op_type = op_type
    assert {"node_relu": "first", "node_it": module} == module_names(model)


def test_other_names_are_not_taken_for_pytorchs() -> None:
    """A scope is no qualified name where another exporter wrote it, nor is a name without one."""
    keras = exported([("model/dense/MatMul", "")], [""])
    scoped = exported([("/enc/norm/Pow", "")], [""])
    scoped.producer_name = "tf2onnx"
    for model in (keras, scoped, exported([("Conv_12", "")], [""])):
        assert module_names(model) is None


@given(st.lists(st.text("/._@01ab", max_size=30), min_size=1, max_size=8))
def test_any_name_has_some_module(names: list[str]) -> None:
    """Whatever stands in names, each node gets a module, and one that parts of names spell."""
    model = exported([(f"/{name}", f"{name}.weight") for name in names], [""] * len(names))
    found = module_names(model)
    assert found is None or {node.name for node in model.graph.node} == found.keys()
    assert {*"".join((found or {}).values())} <= {*"".join(names), "."}


def test_very_deep_names_cost_nothing() -> None:
    """A name of a million scopes is not looked into."""
    model = exported([("/a" * 10**6, ""), ("/norm/Mul", "")], ["", ""])
    named = module_names(model)
    assert named is not None and ["", "norm"] == list(named.values())


def test_a_newer_opset_changes_no_module(tmp_path: Path) -> None:
    """What converts a model says of its nodes what the exporter has said."""
    model = load_model(tiny.write_in_modules(tmp_path / "tiny.onnx"))
    named = module_names(at_least_opset(model, 21).proto)
    assert named is not None and {"blocks.0", "blocks.3"} <= {*named.values()}
    assert module_names(model.proto) == {name: named[name] for name in model.table.names}


def exported(nodes: Sequence[tuple[str, str]], told: Sequence[str]) -> onnx.ModelProto:
    """Return a model of nodes with these names that read these weights, with their metadata."""
    made = []
    for place, ((name, reads), scopes) in enumerate(zip(nodes, told, strict=True)):
        op_type = name.rpartition("/")[2].partition("_")[0] or "Relu"
        node = helper.make_node(op_type, ["x", *filter(None, [reads])], [f"y{place}"], name=name)
        if scopes:
            node.metadata_props.add(key=SCOPES, value=scopes)
        made.append(node)
    weights = [
        helper.make_tensor(name, FLOAT, [1], [1.0])
        for name in dict.fromkeys(reads for _, reads in nodes if reads)
    ]
    graph = helper.make_graph(made, "exported", [], [], weights)
    return helper.make_model(graph, producer_name="pytorch")


@pytest.mark.parametrize(
    ("layer", "module", "shown"),
    [
        ("node_add_12", "bert.embeddings", "node_add_12 (bert.embeddings)"),
        ("/bert/embeddings/Add", "bert.embeddings", "/bert/embeddings/Add"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1", "/layer1/layer1.0/conv1/Conv"),
        ("Add_7", "", "Add_7"),
    ],
)
def test_a_module_stands_beside_names_that_do_not_tell_it(
    layer: str, module: str, shown: str
) -> None:
    """`node_add_12` of a dynamo export says nothing; `/bert/embeddings/Add` says it already."""
    assert shown == with_module(layer, module)
