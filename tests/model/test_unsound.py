"""Models that nobody vouches for: refused in one line, before anything walks or runs them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

import tiny
from models import parse, save
from precision_bisect.commandline.main import main
from precision_bisect.errors import ModelError
from precision_bisect.graphs import local_functions, soundness
from precision_bisect.graphs.graph import constant_of
from precision_bisect.graphs.load import load_model

OWN = "own"


def read(folder: Path) -> onnx.ModelProto:
    """Return the model of twenty layers."""
    return onnx.load(tiny.write_model(folder / "tiny.onnx"))


def with_opset(version: int, domain: str = "") -> Callable[[onnx.ModelProto], None]:
    """Return a change of the opset."""

    def change(model: onnx.ModelProto) -> None:
        model.opset_import.add(domain=domain, version=version)
        if not domain:
            del model.opset_import[0]

    return change


def with_node(
    *inputs: str, outputs: tuple[str, ...] = ("q",)
) -> Callable[[onnx.ModelProto], None]:
    """Return a change that adds a Cast."""
    return lambda model: model.graph.node.append(
        helper.make_node("Cast", inputs, outputs, to=TensorProto.FLOAT)
    )


def with_segment(model: onnx.ModelProto) -> None:
    """Make the first weight a part of another."""
    model.graph.initializer[0].segment.end = 1


def with_segmented_constant(model: onnx.ModelProto) -> None:
    """Add a constant that is a part of another."""
    value = numpy_helper.from_array(np.array(1, np.float32))
    value.segment.end = 1
    model.graph.node.append(helper.make_node("Constant", [], ["q"], value=value))


def with_dimension(size: int) -> Callable[[onnx.ModelProto], None]:
    """Return a change of the input's last dimension."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = size

    return change


def with_type(number: int) -> Callable[[onnx.ModelProto], None]:
    """Return a change of the output's element type."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.elem_type = number

    return change


CASES: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "opset too large": (with_opset(2**40), "opset 1099511627776"),
    "opset far below": (with_opset(-(2**40)), "opset -1099511627776"),
    "opset 0": (with_opset(0), "opset 0"),
    "opset -1": (with_opset(-1), "opset -1"),
    "opset of another domain": (with_opset(2**40, "ai.onnx.ml"), "of ai.onnx.ml"),
    "no inputs": (with_node(), "has 0 inputs"),
    "no outputs": (with_node("x", outputs=()), "has 0 outputs"),
    "no outputs at all": (lambda model: model.graph.ClearField("output"), "has no outputs"),
    "too many inputs": (with_node("x", "x"), "has 2 inputs"),
    "segment": (with_segment, "is a segment"),
    "segment in a constant": (with_segmented_constant, "is a segment"),
    "type too large": (with_type(2**31 - 1), "element type 2147483647"),
    "type below": (with_type(-2), "element type -2"),
    "negative dimension": (with_dimension(-2), "dynamic shape"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_two(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The line names what is wrong."""
    monkeypatch.chdir(tmp_path)
    change, expected = CASES[case]
    model = read(tmp_path)
    change(model)
    onnx.save(model, "odd.onnx")
    assert 2 == main(["odd.onnx", "--threads", "1"])
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("precision-bisect: ")
    assert expected in line


def function(number: int, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    """Return a function of one input and output."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    return helper.make_function(OWN, f"f{number}", ["a"], ["c"], nodes, opsets)


def called(number: int, given: str, output: str) -> onnx.NodeProto:
    """Return a call of a function."""
    return helper.make_node(f"f{number}", [given], [output], domain=OWN)


def with_functions(model: onnx.ModelProto, functions: list[onnx.FunctionProto]) -> None:
    """Have the model begin with a call of the last function."""
    model.opset_import.add(domain=OWN, version=1)
    model.functions.extend(functions)
    model.graph.node.insert(0, called(len(functions) - 1, "x", "begun"))
    model.graph.node[1].input[0] = "begun"


def test_defaults_of_functions_are_counted_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large default of a function that is called often would fill the memory."""
    monkeypatch.setattr(local_functions, "PROTOBUF_LIMIT", 1000)
    model = read(tmp_path)
    body = function(0, [helper.make_node("Neg", ["a"], ["c"])])
    body.attribute_proto.append(helper.make_attribute("unused", "x" * 400))
    outer = [called(0, "a", "b"), called(0, "b", "d"), called(0, "d", "c")]
    with_functions(model, [body, function(1, outer)])
    with pytest.raises(ModelError, match="defaults of local functions come to over 1000 bytes"):
        load_model(save(model, tmp_path))


def test_functions_are_counted_before_they_are_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four functions that each call the one below twice come to 16 nodes, and the model's own."""
    monkeypatch.setattr(soundness, "MOST_NODES", 16)
    model = read(tmp_path)
    leaf = function(0, [helper.make_node("Neg", ["a"], ["c"])])
    doubling = [
        function(n, [called(n - 1, "a", "b"), called(n - 1, "b", "c")]) for n in range(1, 5)
    ]
    nodes = len(model.graph.node)
    with_functions(model, [leaf, *doubling])
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match=f"come to {16 + nodes} nodes"):
        load_model(tmp_path / "odd.onnx")


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    """A circle has no end to put in place."""
    model = read(tmp_path)
    with_functions(model, [function(0, [called(0, "a", "c")])])
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="calls itself"):
        load_model(tmp_path / "odd.onnx")


def with_external_constant(folder: Path, location: str) -> Path:
    """Write a model whose function holds a constant that lies in a file."""
    value = numpy_helper.from_array(np.full((1, 8), 2, np.float32))
    value.ClearField("raw_data")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value=location)
    constant = helper.make_node("Constant", [], ["b"], value=value)
    model = read(folder)
    with_functions(model, [function(0, [constant, helper.make_node("Mul", ["a", "b"], ["c"])])])
    onnx.save(model, folder / "odd.onnx")
    return folder / "odd.onnx"


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "link.bin"])
def test_external_data_of_functions_stays_beside_the_model(location: str, tmp_path: Path) -> None:
    """It follows the rules of the main graph: nothing outside the model's folder is read."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(np.full(8, 2, np.float32).tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(with_external_constant(inside, location))


def test_external_data_of_functions_is_read_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found from any working directory, it is part of the digest and of the mixed model."""
    data = tmp_path / "w.bin"
    data.write_bytes(np.full(8, 2, np.float32).tobytes())
    path = with_external_constant(tmp_path, "w.bin")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "w.bin").write_bytes(b"\0" * 32)
    before = load_model(path).digest
    found = tiny.search(path, tmp_path / "run")
    assert set(tiny.KEPT) <= set(found.kept)
    mixed = onnx.load(tmp_path / "run" / "model.mixed.onnx", load_external_data=False)
    assert b"w.bin" not in mixed.SerializeToString()
    data.write_bytes(np.full(8, 3, np.float32).tobytes())
    assert before != load_model(path).digest


def test_sparse_weights_of_other_files_are_not_read(tmp_path: Path) -> None:
    """External data of a sparse initializer follows the same rules."""
    model = read(tmp_path)
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    sparse.values.data_location = TensorProto.EXTERNAL
    sparse.values.external_data.add(key="location", value="/etc/passwd")
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(tmp_path / "odd.onnx")


def test_a_sparse_weight_that_memory_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before any of it is taken."""
    proto = parse("(float[1] x) => (float[1] y) { y = Abs(x) }")
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    dims = [8, 8]
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, dims))
    path = save(proto, tmp_path)
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=16))
    with pytest.raises(ModelError, match="the sparse weight 'w' takes"):
        load_model(path)


def test_a_domain_without_a_version_that_nothing_uses_is_taken(tmp_path: Path) -> None:
    """Exporters leave such imports, and ONNX Runtime runs them."""
    proto = parse("(float[1] x) => (float[1] y) { y = Abs(x) }")
    proto.opset_import.append(helper.make_opsetid("my.domain", 0))
    assert 1 == len(load_model(save(proto, tmp_path)).table.names)


def test_a_constant_whose_bytes_do_not_fit_is_no_number() -> None:
    """What looks for numbers goes on without it."""
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=b"\0" * 12)
    assert constant_of(helper.make_node("Constant", [], ["c"], value=tensor)) is None
