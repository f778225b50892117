"""Models, changed field by field by what protobuf says of them, then byte by byte."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
INTEGERS = (
    0,
    1,
    -1,
    2,
    -2,
    7,
    8,
    16,
    255,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**40,
    2**62,
    -(2**63),
)
TEXTS = ("", "x", "y", "v0", "n0", "a" * 300, "\0", "\u202ename", "../x", "/etc/passwd", "-", "{}")
TYPES = (
    "Cast",
    "Loop",
    "If",
    "Constant",
    "Reshape",
    "Identity",
    "Conv",
    "Gather",
    "Nothing",
    "Scan",
)
FIGURES = (0.0, -1.0, 1e-40, 1e38, float("inf"), float("nan"))
QUICK = ("--synthetic", "1", "--threads", "1", "--copies", "0", "--max-trials", "3")
"""Flags of a search that ends soon."""
_MORE = (
    *("", "", "--low bf16", "--low int8", "--take-branches", "--json", "-v", "--fuse-norms"),
    *("--tf32 on", "--tf32 auto", "--target onnxruntime", "--target all", "--objective smallest"),
)


def write(rng: random.Random, folder: Path) -> list[str]:
    """Write a changed model and return the arguments that have it read."""
    seeds = _SEEDS
    model = seeds[rng.randrange(len(seeds))]()
    (folder / "w.bin").write_bytes(np.linspace(-1, 1, 512, dtype=np.float32).tobytes())
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        _change(rng, model)
    try:
        data = model.SerializeToString()
    except Exception:  # a change may have left what cannot be written
        data = seeds[0]().SerializeToString()
    if rng.random() < 0.25:
        data = bytes_changed(rng, data)
    (folder / "m.onnx").write_bytes(data)
    flags = [*QUICK, "--seed", "1"]
    what = rng.random()
    if what < 0.4:
        return ["layers", "m.onnx", *rng.choice(([], ["--json"], ["--low", "int8"]))]
    more = rng.choice(_MORE).split()
    shapes = rng.choice(([], [], ["--input-shapes", "x:1x8"]))
    # An answer is re-checked in a fresh process, which takes longer than all else: few have one.
    flags += ["--tol", "1e-12"] if rng.random() < 0.8 else []
    return ["m.onnx", "--out", "run", *flags, *more, *shapes]


def bytes_changed(rng: random.Random, data: bytes) -> bytes:
    """Return data with some bytes flipped, cut out, doubled, or the end cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not found:
            break
        place, length = rng.randrange(len(found)), rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(5):
            case 0 | 1:
                found[place] = rng.randrange(256)
            case 2:
                del found[place : place + length]
            case 3:
                found[place:place] = found[place : place + length]
            case _:
                found[place:place] = rng.randbytes(length)
    return bytes(found[: rng.randrange(len(found) + 1)] if rng.random() < 0.1 else found)


def _change(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change one field of one message, any of them as likely as the others."""
    messages = list(_messages(model))
    message = rng.choice(messages)
    field = rng.choice(list(message.DESCRIPTOR.fields))
    try:
        if field.is_repeated:
            _change_list(rng, message, field, messages)
        elif rng.random() < 0.15:
            message.ClearField(field.name)
        elif field.type == field.TYPE_MESSAGE:
            same = [each for each in messages if each.DESCRIPTOR is field.message_type]
            if same:
                copied = type(same[0])()
                copied.CopyFrom(rng.choice(same))
                getattr(message, field.name).CopyFrom(copied)
        else:
            setattr(message, field.name, _scalar(rng, field))
    except (ValueError, TypeError):
        return


def _change_list(rng: random.Random, message: Any, field: Any, messages: list[Any]) -> None:
    values = getattr(message, field.name)
    what = rng.randrange(4)
    if what == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif field.type == field.TYPE_MESSAGE:
        same = [each for each in messages if each.DESCRIPTOR is field.message_type]
        if what == 1 and len(values) > 1:
            i, j = rng.randrange(len(values)), rng.randrange(len(values))
            first = type(values[i])()
            first.CopyFrom(values[i])
            values[i].CopyFrom(values[j])
            values[j].CopyFrom(first)
        elif same:
            copied = type(same[0])()
            copied.CopyFrom(rng.choice(same))
            values.append(copied)
    elif what == 1 or not len(values):
        values.append(_scalar(rng, field))
    else:
        values[rng.randrange(len(values))] = _scalar(rng, field)


def _scalar(rng: random.Random, field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(TYPES if field.name == "op_type" else TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice(
            (b"", b"\xff\xfe", rng.randbytes(rng.choice((1, 4, 32, 33))), b"a" * 2000)
        )
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(FIGURES)
    if field.type == field.TYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    return rng.choice((*INTEGERS, rng.randrange(32)))


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _model(nodes: list[Any], constants: list[Any], **more: Any) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def _array(name: str, *shape: int) -> onnx.TensorProto:
    values = np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return numpy_helper.from_array(values, name)


def plain() -> onnx.ModelProto:
    """Return four layers that overflow in FP16."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["v0"], name="n0"),
        helper.make_node("Mul", ["v0", "v0"], ["v1"], name="n1"),
        helper.make_node("Sqrt", ["v1"], ["v2"], name="n2"),
        helper.make_node("MatMul", ["v2", "m"], ["y"], name="n3"),
    ]
    return _model(nodes, [_array("w", 8), _array("m", 8, 8)])


def constants() -> onnx.ModelProto:
    """Return constant nodes of several kinds, a shape that is computed, and a sparse weight."""
    value = helper.make_node("Constant", [], ["c"], name="c", value=_array("c", 8))
    figures = helper.make_node("Constant", [], ["f"], name="f", value_floats=[1.0] * 8)
    shape = helper.make_node("Constant", [], ["s"], name="s", value_ints=[1, 8])
    nodes = [
        *(value, figures, shape),
        helper.make_node("Add", ["x", "c"], ["v0"], name="n0"),
        helper.make_node("Reshape", ["v0", "s"], ["v1"], name="n1"),
        helper.make_node("Mul", ["v1", "f"], ["v2"], name="n2"),
        helper.make_node("Softmax", ["v2"], ["v3"], name="n3", axis=-1),
        helper.make_node("Cast", ["v3"], ["h"], name="n4", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["v4"], name="n5", to=FLOAT),
        helper.make_node("Add", ["v4", "sp"], ["y"], name="n6"),
    ]
    model = _model(nodes, [])
    sparse = model.graph.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "sp"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 3], np.int64), "si"))
    return model


def control() -> onnx.ModelProto:
    """Return an If beside a Loop."""
    info = helper.make_tensor_value_info
    one = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["a"])], "a", [], [info("a", FLOAT, [1, 8])]
    )
    two = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "b", [], [info("b", FLOAT, [1, 8])]
    )
    body = helper.make_graph(
        [helper.make_node("Identity", ["g"], ["go"]), helper.make_node("Sin", ["v"], ["o"])],
        "body",
        [info("i", INT64, []), info("g", BOOL, []), info("v", FLOAT, [1, 8])],
        [info("go", BOOL, []), info("o", FLOAT, [1, 8])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["v0"], name="n0", then_branch=one, else_branch=two),
        helper.make_node("Loop", ["trips", "yes", "v0"], ["v1"], name="n1", body=body),
        helper.make_node("Mul", ["v1", "v1"], ["y"], name="n2"),
    ]
    yes = numpy_helper.from_array(np.array(True), "yes")
    return _model(nodes, [yes, numpy_helper.from_array(np.array(3, np.int64), "trips")])


def functions() -> onnx.ModelProto:
    """Return a function that calls another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = [helper.make_node("Mul", ["a", "a"], ["c"])]
    outer = [
        helper.make_node("inner", ["a"], ["b"], domain="own"),
        helper.make_node("inner", ["b"], ["c"], domain="own"),
    ]
    made = [
        helper.make_function("own", "inner", ["a"], ["c"], inner, opsets),
        helper.make_function("own", "outer", ["a"], ["c"], outer, opsets),
    ]
    nodes = [
        helper.make_node("outer", ["x"], ["v0"], name="n0", domain="own"),
        helper.make_node("Add", ["v0", "w"], ["y"], name="n1"),
    ]
    return _model(nodes, [_array("w", 8)], functions=made)


def external() -> onnx.ModelProto:
    """Return a model whose weight lies in `w.bin`."""
    weight = TensorProto(
        name="m", data_type=FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "256")):
        weight.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("MatMul", ["x", "m"], ["v0"], name="n0"),
        helper.make_node("Tanh", ["v0"], ["y"], name="n1"),
    ]
    return _model(nodes, [weight])


def recurrent() -> onnx.ModelProto:
    """Return an LSTM and a Conv."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["v0"], name="n0"),
        helper.make_node("Conv", ["v0", "k"], ["v1"], name="n1", pads=[1, 1]),
        helper.make_node("LSTM", ["v1", "w", "r"], ["v2", "h"], name="n2", hidden_size=4),
        helper.make_node("Reshape", ["v2", "flat"], ["v3"], name="n3"),
        helper.make_node("MatMul", ["v3", "m"], ["y"], name="n4"),
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    flat = numpy_helper.from_array(np.array([1, -1], np.int64), "flat")
    weights = [
        _array("k", 1, 1, 3),
        _array("w", 1, 16, 8),
        _array("r", 1, 16, 4),
        _array("m", 4, 8),
    ]
    return _model(nodes, [axis, flat, *weights])


_OPSETS = '<ir_version: 9, opset_import: ["" : 17, "own" : 1]>'
_NORM = """g (float[1, 8] x) => (float[1, 8] y)
  <float[1] two = {2}, float[1] small = {0.001}, float[1] up = {400}> {
  [n0] a = Mul(x, up) [n1] m = ReduceMean <axes = [-1]> (a) [n2] d = Sub(a, m)
  [n3] q = Pow(d, two) [n4] v = ReduceMean <axes = [-1]> (q) [n5] w = Add(v, small)
  [n6] r = Sqrt(w) [n7] z = Div(d, r) [n8] e = Exp(z) [n9] s = ReduceSum(e)
  [n10] y = Div(e, s) }"""
_ANY_LENGTH = """g (float[N, 8] x) => (float[N, L] y)
  <int64[1] first = {0}, int64[1] rest = {-1}, int64 from = {0}, int64 step = {1}> {
  [n0] a = Mul(x, x) [n1] s = Shape(a) [n2] n = Gather(s, first)
  [n3] f = Concat <axis = 0> (n, rest) [n4] b = Reshape(a, f)
  [n5] c = ReduceProd <keepdims = 0> (s) [n6] p = Range(from, c, step) [n7] o = Cast <to = 1> (p)
  [n8] k = Reshape(o, f) [n9] h = Add(b, k) [n10] y = Sqrt(h) }"""


def norms() -> onnx.ModelProto:
    """Return a LayerNorm and a Softmax in pieces, the squares of which overflow in FP16."""
    return parser.parse_model(_OPSETS + _NORM)


def any_length() -> onnx.ModelProto:
    """Return shape arithmetic over an input without fixed shape."""
    return parser.parse_model(_OPSETS + _ANY_LENGTH)


_SEEDS: tuple[Callable[[], onnx.ModelProto], ...] = (
    *(plain, constants, control, functions, external, recurrent, norms, any_length),
)
