"""Every operator of the ONNX standard between two others: ONNX's own test cases, as models.

A model is `before`, the operator `node`, and `after` for each of its float outputs. The first
float input comes from `before`; the others are constants, as parsers of engines want them.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from effort import nightly
from models import parse
from precision_bisect.settings.targets import parser_steps

NODE, BEFORE, AFTER = "node", "before", "after"
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
STANDARD = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
OPERATORS = sorted(STANDARD - {"Constant"})
"""A constant is marked where all that read it are, not by itself."""
DAILY = {
    *OPERATORS[::5],
    *("If", "Loop", "Scan", "Attention", "LSTM", "Gemm", "QuantizeLinear"),
    *(name for name, rows in parser_steps()["operators"].items() if rows[0]["inside"] != "whole"),
}
"""Those that the parser takes apart, those of a kind of their own, and a fifth of the others."""
EACH_NIGHT = [*sorted(DAILY), *nightly(*(name for name in OPERATORS if name not in DAILY))]
"""All operators as parameters of a test, most of them for the night."""
MORE = {
    "CumSum": "(float[2,4] x) => (float[2,4] y) <int64 a = {1}> { y = CumSum(x, a) }",
    "Einsum": "(float[2,4] x) => (float y) <float[4,2] w = {1,2,3,4,5,6,7,8},"
    ' float[2,2] v = {1,2,3,4}> { y = Einsum <equation = "ab,bc,cd->ad"> (x, w, v) }',
    "Equal": "(float[2,4] x) => (bool[2,4] y) <float c = {1}> { y = Equal(x, c) }",
    "GlobalLpPool": "(float[1,2,4,4] x) => (float y) { y = GlobalLpPool(x) }",
    "LayerNormalization": "(float[2,4] x) => (float y) <float[4] s = {1,2,3,4},"
    " float[4] b = {1,2,3,4}> { y = LayerNormalization(x, s, b) }",
    "CastLike": "(float[4] x) => (float[4] y) <float k = {1}> { y = CastLike(x, k) }",
    "DequantizeLinear": "(int8[4] x) => (float[4] y) <float s = {0.5}>"
    " { y = DequantizeLinear(x, s) }",
    "OneHot": "(int64[4] x) => (float[4,6] y) <int64 d = {6}, float[2] v = {0, 1}>"
    " { y = OneHot(x, d, v) }",
    "QuantizeLinear": "(float[4] x) => (int8[4] y) <float s = {0.5}, int8 z = {0}>"
    " { y = QuantizeLinear(x, s, z) }",
    "RandomNormal": "() => (float[2,4] y) { y = RandomNormal <shape = [2, 4]> () }",
    "RandomUniform": "() => (float[2,4] y) { y = RandomUniform <shape = [2, 4]> () }",
    "Pad": "(float[2,4] x) => (float y) <int64[4] p = {0,1,0,1}, float c = {2}>"
    " { y = Pad(x, p, c) }",
    "RandomNormalLike": "(float[2,4] x) => (float[2,4] y) { y = RandomNormalLike(x) }",
    "RandomUniformLike": "(float[2,4] x) => (float[2,4] y) { y = RandomUniformLike(x) }",
    "Trilu": "(float[4,4] x) => (float[4,4] y) { y = Trilu(x) }",
}
"""Operators of which ONNX has no case that a parser takes, or none in FP32."""


class NodeCase(NamedTuple):
    """A case of ONNX's own tests: its name, a model of one node, and what is fed to it."""

    name: str
    model: onnx.ModelProto
    values: Sequence[Any]

    @property
    def plain(self) -> bool:
        """Whether all values are arrays."""
        return all(isinstance(value, np.ndarray | np.generic) for value in self.values)


@cache
def node_cases() -> Sequence[NodeCase]:
    """Return ONNX's own cases of one node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import base
        from onnx.backend.test.case.node import collect_testcases
        from onnx.reference.ops import op_pool_common

        # Most of the time would go to what is not read: averages and maxima, and sources.
        with (
            patch.object(op_pool_common, "pool", _zeros_of_pool, create=True),
            patch.object(base, "process_snippet", lambda *_: ("", "")),
        ):
            cases = collect_testcases("")
    return [
        NodeCase(case.name, case.model, case.data_sets[0][0])
        for case in cases
        if case.model is not None and len(case.model.graph.node) == 1 and case.data_sets
    ]


def _zeros_of_pool(
    padded: NDArray[Any],
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    *_: Any,
    **__: Any,
) -> NDArray[Any]:
    """Return an output of the shape and the type that pooling gives."""
    return np.zeros((*x_shape[:2], *out_shape), padded.dtype)


@cache
def operator_cases() -> Mapping[str, list[onnx.ModelProto]]:
    """Return models by operator: those that read a float, or give one, in the default domain."""
    found: dict[str, list[onnx.ModelProto]] = defaultdict(list)
    for case in node_cases():
        found[case.model.graph.node[0].op_type] += _between(case.model, case.values)
    for operator, text in MORE.items():
        found[operator] += _between(parse(text), ())
    return {operator: models for operator, models in found.items() if models}


def _between(case: onnx.ModelProto, values: Sequence[object]) -> Iterator[onnx.ModelProto]:
    """Yield the model around the case's node, if that handles floats at all."""
    model = onnx.ModelProto()
    model.CopyFrom(case)
    graph, node = model.graph, model.graph.node[0]
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    first = next((name for name in node.input if types.get(name) == TensorProto.FLOAT), None)
    floats = [v for v in graph.output if v.type.tensor_type.elem_type in FLOATS]
    if first is None and not floats:
        return
    node.name = NODE
    others = {
        value.name: array
        for value, array in zip(graph.input, values, strict=False)
        if value.name != first
    }
    if not all(isinstance(array, np.ndarray | np.generic) for array in others.values()):
        return
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in others.items()
    )
    data = [value for value in graph.input if value.name not in others]
    nodes = [node]
    if first is not None:
        nodes.insert(0, helper.make_node("Neg", [first], ["fed"], name=BEFORE))
        node.input[:] = ["fed" if name == first else name for name in node.input]
    ends = []
    for number, value in enumerate(graph.output):
        if value in floats:
            out = f"negated_{number}"
            nodes.append(helper.make_node("Neg", [value.name], [out], name=f"{AFTER}{number}"))
            value = helper.make_tensor_value_info(out, value.type.tensor_type.elem_type, None)
        ends.append(value)
    del graph.input[:], graph.output[:]
    graph.input.extend(data)
    graph.output.extend(ends)
    kept = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    yield model
