"""What If, Loop and Scan hold stays high: weak exports name it, and a search marks the same."""

import runpy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from effort import examples
from exports_models import SHELLS, export_of, run_script
from models import parse, save
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.exports.export import Export
from precision_bisect.exports.trtexec import without_command
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.typed.high_nodes import told
from precision_bisect.runs.runfolder import LAYER_PRECISIONS, POLYGRAPHY_SCRIPT, RunFolder
from trtexec_oracle import trtexec_selects
from weak_networks import Parsed, handles_floats, markable, parsed

UNARY = ("Tanh", "Sigmoid", "Exp", "Relu", "Softplus", "Neg")
ENDS = ("If", "Loop", "Scan")
KINDS = (*UNARY, "Mul", "Add", "Mean of constants", "Integers", "Compare", *ENDS)
SHAPE = [3, 4]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
VALUE = helper.make_tensor_value_info


@dataclass(slots=True)
class Maker:
    """Makes chains of nodes that map a tensor of 3 x 4 to another, in bodies at any depth."""

    choose: st.DataObject
    count: int = 0
    names: list[str] = field(default_factory=list)

    def new(self) -> str:
        """Return a tensor that no graph has yet."""
        self.count += 1
        return f"t{self.count}"

    def chain(self, source: str, depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return nodes in a row, and what the last gives."""
        nodes: list[onnx.NodeProto] = []
        kinds = KINDS if depth else KINDS[: -len(ENDS)]
        for kind in self.choose.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
            made, source = self.step(kind, source, depth)
            nodes += made
        return nodes, source

    def step(self, kind: str, x: str, depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return the nodes of one step."""
        y, other = self.new(), self.new()
        if kind in UNARY:
            return [self.node(kind, [x], [y])], y
        if kind in ("Mul", "Add"):
            return [self.node(kind, [x, "outer"], [y])], y
        if kind == "Mean of constants":
            constant = numpy_helper.from_array(np.ones(4, np.float32))
            made = self.node("Constant", [], [other], value=constant)
            return [made, self.node("Sub", [x, other], [y])], y
        if kind == "Integers":
            return [self.node("Add", ["number", "number"], [other]), self.node("Sin", [x], [y])], y
        if kind == "Compare":
            made = self.node("Greater", [x, "outer"], [other])
            return [made, self.node("Where", [other, x, "outer"], [y])], y
        return [self.holder(kind, x, y, depth - 1)], y

    def holder(self, kind: str, x: str, y: str, depth: int) -> onnx.NodeProto:
        """Return an If, a Loop or a Scan."""
        if kind == "If":
            bodies = {}
            for name in ("then_branch", "else_branch"):
                nodes, last = self.chain(x, depth)
                bodies[name] = helper.make_graph(nodes, name, [], [VALUE(last, FLOAT, SHAPE)])
            return self.node("If", ["condition"], [y], **bodies)
        carried, going, again = self.new(), self.new(), self.new()
        nodes, last = self.chain(carried, depth)
        if kind == "Loop":
            nodes.append(self.node("Identity", [going], [again]))
            ins = [
                VALUE(self.new(), INT64, []),
                VALUE(going, BOOL, []),
                VALUE(carried, FLOAT, SHAPE),
            ]
            outs = [VALUE(again, BOOL, []), VALUE(last, FLOAT, SHAPE)]
            body = helper.make_graph(nodes, "body", ins, outs)
            return self.node("Loop", ["number", "condition", x], [y], body=body)
        row, sent = self.new(), self.new()
        nodes.append(self.node("Cos", [row], [sent]))
        ins = [VALUE(carried, FLOAT, SHAPE), VALUE(row, FLOAT, SHAPE[1:])]
        outs = [VALUE(last, FLOAT, SHAPE), VALUE(sent, FLOAT, SHAPE[1:])]
        body = helper.make_graph(nodes, "body", ins, outs)
        return self.node("Scan", [x, "outer"], [y, self.new()], body=body, num_scan_inputs=1)

    def node(
        self, kind: str, inputs: list[str], outputs: list[str], **more: Any
    ) -> onnx.NodeProto:
        """Return a node with a name of its own."""
        self.names.append(f"{kind}.{len(self.names)}")
        return helper.make_node(kind, inputs, outputs, name=self.names[-1], **more)

    def model(self) -> onnx.ModelProto:
        """Return a model."""
        holder = self.choose.draw(st.sampled_from(ENDS))
        before, x = self.chain("x", 0)
        held, y = self.step(holder, x, 2)
        after, y = self.chain(y, 1)
        ins = [VALUE("x", FLOAT, SHAPE), VALUE("outer", FLOAT, SHAPE)]
        ins += [VALUE("number", INT64, []), VALUE("condition", BOOL, [])]
        nodes = [*before, *held, *after]
        graph = helper.make_graph(nodes, "bodies", ins, [VALUE(y, FLOAT, SHAPE)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def nodes_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes of a model and its bodies."""
    return [node for graph in all_graphs(model.graph) for node in graph.node]


def marks(rtx: Flavour, export: Export, held: Parsed) -> set[str]:
    """Return the layers that a search by weak typing marks."""
    high = told(export.high, export.model.table)
    with markable(rtx.module) as noted:
        prepare_network(Marks(kept=(), high=high, low="fp16"), [], held.network)
    return set(noted.precision)


def in_bodies(held: Parsed, proto: onnx.ModelProto) -> set[str]:
    """Return the layers of a network that compute floats for nodes of bodies."""
    main = {node.name for node in proto.graph.node}
    names = {node.name for node in nodes_of(proto)} - main
    return {each.name for each in held.layers if each.name in names and handles_floats(each)}


@given(data=st.data())
@examples(12)
def test_all_weak_exports_say_what_a_search_marks(rtx: Flavour, data: st.DataObject) -> None:
    """Nested If, Loop and Scan: string, script and marks agree, layer by layer of the parser."""
    proto = Maker(data).model()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        export = export_of(save(proto, folder), [])
        names = data.draw(st.sets(st.sampled_from(export.model.table.names)))
        export = export_of(folder / "model.onnx", sorted(names))
        reasons = write_exports(RunFolder(folder), export)
        assert None is reasons[LAYER_PRECISIONS] is reasons[POLYGRAPHY_SCRIPT]
        held = parsed(rtx.module, proto)
        layers = [each.name for each in held.layers]
        spec = f"--layerPrecisions={(folder / LAYER_PRECISIONS).read_text()}"
        selected = trtexec_selects(spec, layers)
        with markable(rtx.module) as noted:
            runpy.run_path(str(folder / POLYGRAPHY_SCRIPT))["postprocess"](network=held.network)
        marked = marks(rtx, export, held)
    named = {node.name for node in nodes_of(proto)}
    assert marked == set(noted.precision)
    assert marked & named == selected
    assert in_bodies(held, proto) <= selected
    assert names <= selected


@given(data=st.data())
@examples(12)
def test_names_that_do_not_tell_nodes_apart_are_refused(rtx: Flavour, data: st.DataObject) -> None:
    """Empty or doubled names, bodies included: no weak export; a search marks the same layers."""
    proto = Maker(data).model()
    floats = [node for node in nodes_of(proto) if node.op_type in (*UNARY, "Sin", "Cos", "Where")]
    assume(floats)
    changed, other = (data.draw(st.sampled_from(floats)) for _ in range(2))
    plain = onnx.ModelProto.FromString(proto.SerializeToString())
    clean = {node.output[0]: node.name for node in nodes_of(plain)}
    changed.name = "" if changed.name == other.name else other.name
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        whole = export_of(save(plain, folder), [])
        every = marks(rtx, whole, parsed(rtx.module, whole.model.proto))
        export = export_of(save(proto, folder), [])
        again = marks(rtx, export, parsed(rtx.module, export.model.proto))
        told_of = {each.output[0] for each in nodes_of(plain) if each.name in every}
        reasons = write_exports(RunFolder(folder), export)
        assert reasons[LAYER_PRECISIONS] == reasons[POLYGRAPHY_SCRIPT] or not told_of
        if {changed.output[0], other.output[0]} & told_of:
            assert "no name of its own" in str(reasons[LAYER_PRECISIONS])
            assert {"weak"} == without_command(export).keys()
            assert 1 == run_script(folder, "weak", SHELLS[0]).code
    now = {node.name: node.output[0] for node in nodes_of(export.model.proto)}
    assert {name for name in every if name in clean.values()} == {
        clean[now[name]] for name in again if name in now
    }


OVERFLOWING = """(float[1,4] x, bool c) => (float[1,4] y) <float[1,4] k = {1, 2, 3, 4}> {
    [grow] b = Mul(x, k) [branch] r = If (c) <
        then_branch = yes () => (float[1,4] p) {
            [then_square] s = Mul(b, b) [then_sums] p = HERE },
        else_branch = no () => (float[1,4] q) { [else_sigmoid] q = Sigmoid(b) }>
    [out] y = Tanh(r) }"""
HARD: Mapping[str, str] = {
    "LogSoftmax(s)": "of several layers, of which one has its name",
    "Sum(s, b, s)": "of several layers, of which one has its name",
    "Mod<fmod = 1>(s, b)": "of layers without a name",
    "Trilu(s)": "computes no floats",
}


@pytest.mark.parametrize("operator", HARD)
def test_a_body_that_names_cannot_keep_is_refused(operator: str, tmp_path: Path) -> None:
    """The script by layers still says it; the string would leave a part of the body low."""
    model = parse(OVERFLOWING.replace("HERE", operator))
    export = export_of(save(model, tmp_path), [])
    reasons = write_exports(RunFolder(tmp_path), export)
    assert HARD[operator] in str(reasons[LAYER_PRECISIONS])
    assert "polygraphy_constraints.py finds them all" in str(reasons[LAYER_PRECISIONS])
    assert reasons[POLYGRAPHY_SCRIPT] is None
    ran = run_script(tmp_path, "weak", SHELLS[0])
    assert (1, [], True) == (ran.code, ran.arguments, HARD[operator] in ran.said)
    assert {"weak"} == without_command(export).keys()


def test_a_layer_that_tensorrt_may_call_like_another_is_refused(tmp_path: Path) -> None:
    """The parser calls the sum of `gemm` `gemm_0`: a constraint would be the sum's."""
    model = parse(
        "(float[4,8] x) => (float[4,8] y) <float[8] b = {1,2,3,4,5,6,7,8}>"
        " { [gemm] h = Gemm(x, w, b) [gemm_0] y = Tanh(h) }"
    )
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    model.graph.initializer.append(weight)
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["gemm_0"]))
    said = "TensorRT may call a layer of 'gemm' 'gemm_0', too"
    assert said == reasons[LAYER_PRECISIONS]
    assert reasons[POLYGRAPHY_SCRIPT] is None


def test_functions_inside_bodies_have_no_names_to_tell(tmp_path: Path) -> None:
    """A local function is taken apart, by TensorRT as here, each under names of its own."""
    model = parse(OVERFLOWING.replace("HERE", "Tanh(s)"))
    branch = model.graph.node[1].attribute[0].g
    branch.node[1].CopyFrom(helper.make_node("Twice", ["s"], ["p"], name="call", domain="own"))
    body = [helper.make_node("Add", ["v", "v"], ["w"], name="inside")]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Twice", ["v"], ["w"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), []))
    assert "no name of its own" in str(reasons[LAYER_PRECISIONS])
    assert reasons[LAYER_PRECISIONS] == reasons[POLYGRAPHY_SCRIPT]


def test_one_tensor_of_two_types_in_two_branches_is_no_reason_to_run_low(
    rtx: Flavour, tmp_path: Path
) -> None:
    """Bodies beside each other may call an integer and a float the same: the float stays high."""
    model = parse(
        """(float[4] x, int64[4] n, bool c) => (float[4] y) { [branch] y = If (c) <
        then_branch = yes () => (float[4] p) { [whole] s = Add(n, n) [cast] p = Cast<to=1>(s) },
        else_branch = no () => (float[4] q) { [real] s = Mul(x, x) [back] q = Tanh(s) }> }"""
    )
    export = export_of(save(model, tmp_path), [])
    assert {"real", "back"} <= marks(rtx, export, parsed(rtx.module, model))
