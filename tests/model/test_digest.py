"""A model's digest: of its file, and of what its tensors are in files of external data."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from models import normal, parse, save, save_external, with_weights
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.weights import external_parts

TWO = "(float[1,256] x) => (float[1,256] y) { h = MatMul(x, w) y = MatMul(h, v) }"


def two_weights(folder: Path) -> Path:
    """Save a model whose two weights lie in one file, and return its path."""
    folder.mkdir(exist_ok=True)
    weights = {"w": normal(256, 256), "v": normal(256, 256, seed=1)}
    return save_external(with_weights(parse(TWO), weights), folder)


def test_bytes_that_no_tensor_has_do_not_count(tmp_path: Path) -> None:
    """What lies between, before and behind the tensors of a file may change."""
    path = two_weights(tmp_path)
    first, second = external_parts(onnx.load(path, load_external_data=False))
    assert first.length == second.length == 256 * 256 * 4
    data = (tmp_path / "model.data").read_bytes()
    # As where several models share one file: theirs lies behind ours.
    (tmp_path / "model.data").write_bytes(data + b"of another model")
    before = load_model(path).digest
    (tmp_path / "model.data").write_bytes(data + b"of another one")
    assert before == load_model(path).digest


@pytest.mark.parametrize("place", [0, 256 * 256 * 4 - 1, -1])
def test_a_bit_of_a_tensor_counts(place: int, tmp_path: Path) -> None:
    """The first and the last byte of a tensor, and those of every other one, too."""
    path = two_weights(tmp_path)
    before = load_model(path).digest
    data = bytearray((tmp_path / "model.data").read_bytes())
    data[place] ^= 1
    (tmp_path / "model.data").write_bytes(data)
    assert before != load_model(path).digest


def test_the_order_of_equal_parts_counts(tmp_path: Path) -> None:
    """Two models with the same bytes at other places are two models."""
    path = two_weights(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    entries = [
        {each.key: each for each in tensor.external_data} for tensor in proto.graph.initializer
    ]
    for first, second in zip(entries[0].values(), entries[1].values(), strict=True):
        first.value, second.value = second.value, first.value
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    assert load_model(path).digest != load_model(other).digest


def test_a_large_file_of_which_little_is_used_is_not_read(tmp_path: Path) -> None:
    """Of a sparse terabyte the tensors alone are hashed."""
    path = two_weights(tmp_path)
    before = load_model(path).digest
    with (tmp_path / "model.data").open("r+b") as stream:
        stream.truncate(2**40)
    assert before == load_model(path).digest


def test_nested_and_tied_tensors_count_once(tmp_path: Path) -> None:
    """Two tensors of the same bytes are one part, and one in an attribute has its own."""
    proto = onnx.load(two_weights(tmp_path), load_external_data=False)
    tied = proto.graph.initializer.add()
    tied.CopyFrom(proto.graph.initializer[0])
    tied.name = "tied"
    constant = onnx.helper.make_node("Constant", [], ["c"])
    inner = onnx.TensorProto(name="t", data_type=onnx.TensorProto.FLOAT, dims=[4])
    inner.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "model.data"), ("offset", "8")):
        inner.external_data.add(key=key, value=value)
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(inner)
    proto.graph.node.append(constant)
    lengths = [part.length for part in external_parts(proto)]
    assert [256 * 256 * 4, 16, 256 * 256 * 4] == lengths


def test_a_file_without_external_data_is_its_bytes(tmp_path: Path) -> None:
    """The smallest change of the file is another model."""
    path = save(parse("(float[4] x) => (float[4] y) { y = Exp(x) }"), tmp_path)
    before = load_model(path).digest
    assert before == load_model(path).digest
    proto = onnx.load(path)
    proto.doc_string = "another"
    assert before != load_model(save(proto, tmp_path)).digest
    assert np.unique([len(before)]) == [64]
