"""The builder's text of TensorRT-RTX, read back whatever names stand in it."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    parse_layers,
)

LINEAR = "(Linear) Row major linear format"
TEXT = f"""Layers:
Name: [ShapeHostToDeviceCopy 0], LayerType: ShapeHostToDevice, Inputs: [], Outputs: [ {{ Name: \
/Gather, Location: Device, Dimensions: [1], Datatype: Int64, Format: Format not available due to \
dynamic shapes }}], ParameterType: ShapeH2D, shapeValues0: [-5], TacticValue: 0x0000000000000000, \
StreamId: 0, Metadata: \

Name: __mye46_myl0_1, LayerType: gemm, Inputs: [ {{ Name: y.1_2_myl0, Dimensions: [-1,256], \
Strides: [256,1], StrideOrder: [1,0], Datatype: Half, Format: {LINEAR} }}], \
Constants: [ {{ Name: __mye41_dconst_myl0, Dimensions: [256,256], Strides: [256,1], \
StrideOrder: [1,0], Datatype: Half, Format: {LINEAR} }}, \
{{ Name: __mye33mm_alpha_myl0, Dimensions: [1], Strides: [1], StrideOrder: [0], \
Datatype: Float, Format: {LINEAR} }}], \
Outputs: [ {{ Name: y, Dimensions: [], Strides: [], StrideOrder: [], Datatype: BFloat16, \
Format: {LINEAR} }}], TacticName: __myelin_CASK_STUB, StreamId: 0, \
Metadata: [ONNX Layer: mm]\x1f[ONNX Layer: c2]\x1e[ONNX Layer: c1]

I/O Tensors:
 Name: x, IOMode: Input, DataType: Half, Dimensions: [8,64], Location: Device

Engine Metadata:
 Multi-Device: Disabled
"""


def tensor(name: str, dtype: str, *dims: int) -> EngineTensor:
    """Return an engine tensor."""
    return EngineTensor(name=name, dtype=dtype, dims=dims)


def test_every_field_is_read() -> None:
    """Names, types, shapes, constants, tactic and nodes come out; other sections do not."""
    copied, product = parse_layers(TEXT)
    assert ("[ShapeHostToDeviceCopy 0]", "ShapeHostToDevice", ()) == (
        copied.name,
        copied.kind,
        copied.nodes,
    )
    assert (tensor("/Gather", "int64", 1),) == copied.outputs
    assert (
        EngineLayer(
            name="__mye46_myl0_1",
            kind="gemm",
            inputs=(tensor("y.1_2_myl0", "fp16", -1, 256),),
            outputs=(tensor("y", "bf16"),),
            constants=(
                tensor("__mye41_dconst_myl0", "fp16", 256, 256),
                tensor("__mye33mm_alpha_myl0", "fp32", 1),
            ),
            tactic="__myelin_CASK_STUB",
            nodes=("mm", "c2", "c1"),
        )
        == product
    )


def test_other_text_has_no_layers() -> None:
    """A text without the heading lists nothing."""
    assert [] == parse_layers("Name: a, LayerType: kgen, StreamId: 0, Metadata: ")


SYNTAX = (
    ", ",
    "]",
    "[",
    "{ Name: ",
    " }",
    "], Constants: [",
    "], Outputs: [",
    ", LayerType: gemm",
    ", StreamId: ",
    "Metadata: ",
    "[ONNX Layer: ",
    "]\x1f[ONNX Layer: ",
    "Datatype: Half",
    "Dimensions: [",
    "Dimensions: [1-2]",
    ", Dimensions: [--1]",
    f", Dimensions: [{'9' * 5000}]",
    "\n",
    "\nName: ",
    "\n\nI/O Tensors:",
    "'",
    '"',
)
plain = st.text(st.characters(exclude_characters="\x1e\x1f\r\n]["), min_size=1, max_size=12)


def line(name: str, nodes: list[str]) -> str:
    """Return a well-formed line of the text."""
    one = f"{{ Name: {name}, Dimensions: [8,64], Datatype: Half, Format: {LINEAR} }}"
    listed = "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes)
    return (
        f"Name: {name}, LayerType: kgen, Inputs: [ {one}], Constants: [], Outputs: [ {one}, {one}]"
        f", TacticName: t, StreamId: 0, Metadata: {listed}"
    )


@given(st.lists(st.tuples(plain, st.lists(plain, max_size=4)), max_size=4))
@example([("a, b", ["a, b 'c' \"d\"", " ", "卷积"])])
def test_names_come_back(entries: list[tuple[str, list[str]]]) -> None:
    """Names of layers, tensors and nodes without brackets and line breaks are read exactly."""
    syntax = (", LayerType: ", ", StreamId: ", "{ Name: ", ", Location: ", ", Dimensions: [")
    assume(not any(part in name for name, _ in entries for part in syntax))
    text = "Layers:\n" + "\n".join(line(*entry) for entry in entries) + "\n\nI/O Tensors:\n"
    found = parse_layers(text)
    assert entries == [(layer.name, list(layer.nodes)) for layer in found]
    for layer in found:
        assert [layer.name] * 3 == [t.name for t in (*layer.inputs, *layer.outputs)]


@pytest.mark.parametrize("name", ["q Dimensions: [1-2]", "q Dimensions: [7] Datatype: Float"])
def test_a_name_that_imitates_a_field(name: str) -> None:
    """Shape and type are read behind a tensor's name, whatever stands in it."""
    (layer,) = parse_layers("Layers:\n" + line(name, ["node"]))
    assert (tensor(name, "fp16", 8, 64),) == layer.inputs


def test_impossible_shapes_are_passed_over() -> None:
    """What is no shape, or one of more digits than any, is no field and no error."""
    for shape in ("1-2", "--1", "9" * 5000):
        text = "Layers:\n" + line("layer", ["node"]).replace("8,64", shape)
        assert [()] == [layer.inputs for layer in parse_layers(text)]


nodes = st.lists(st.sampled_from(SYNTAX) | plain, min_size=1, max_size=5).map("".join)


@given(nodes.filter(lambda name: "\n" not in name and "][ONNX" not in name and "\x1f" not in name))
def test_hostile_node_names_come_back(name: str) -> None:
    """A node name may hold any syntax but that of the border between two nodes."""
    (found,) = parse_layers("Layers:\n" + line("layer", ["before", name, "after"]))
    assert ("before", name, "after") == found.nodes


def test_a_name_that_imitates_the_next_section() -> None:
    """Layers behind a name that holds the heading of the next section are read as well."""
    text = "Layers:\n" + line("a\n\nI/O Tensors:", ["x"]) + "\n" + line("b", ["y"])
    names = [layer.name for layer in parse_layers(text + "\n\nI/O Tensors:\n")]
    assert ["a\n\nI/O Tensors:", "b"] == names


@given(st.data())
def test_mutated_text_never_raises(data: st.DataObject) -> None:
    """Whatever is cut, doubled or put in, the parser returns layers or nothing."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 80)))
        text = text[:start] + data.draw(st.sampled_from(SYNTAX) | st.text(max_size=5)) + text[end:]
    for layer in parse_layers(text):
        assert isinstance(layer.name, str)


def test_long_hostile_text_is_quick() -> None:
    """Reading takes time in proportion to the text, also where keys repeat without end."""
    for part in SYNTAX:
        assert len(parse_layers("Layers:\nName: " + part * 30_000)) <= 30_000
