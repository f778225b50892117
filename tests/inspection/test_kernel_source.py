"""Verdicts on random graphs against the source code of the kernels, which the engine carries.

An engine of TensorRT-RTX holds the CUDA source of the kernels that it generates, with the type of
every operation, and for the others a listing of operations and tensors with their types. Users
cannot be asked to read that, and other libraries do not have it; it is the truth here. Each graph
has every operator once, so that it is clear which line computes which layer.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from effort import nightly
from inspection.engines import DEMOTED, HONOURED, Inspected, Target, inspect
from models import normal, save
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.precisions import LowName

UNARY = ["Sigmoid", "Tanh", "Exp", "Sqrt", "Abs", "Neg", "Erf", "Floor", "Sin", "Cos", "Atan"]
BINARY = ["Add", "Mul", "Max", "Min", "Sub", "Div"]
SIZE = 16


def random_model(seed: int, folder: Path) -> Model:
    """Return a graph of some twelve operators, at most one of a kind but for products."""
    rng = np.random.default_rng(seed)
    operators = list(rng.permutation([*UNARY, *BINARY, *["MatMul"] * 4]))[:12]
    tensors, nodes, weights = ["x"], [], {}
    for number, op_type in enumerate(map(str, operators)):
        read = [str(rng.choice(tensors[-3:]))]
        if op_type == "MatMul" or (op_type in BINARY and rng.random() < 0.5):
            weights[f"w{number}"] = normal(SIZE, SIZE, seed=number)
            read.append(f"w{number}")
        elif op_type in BINARY:
            read.append(str(rng.choice([t for t in tensors if t != read[0]] or tensors)))
        tensors.append(f"t{number}")
        nodes.append(helper.make_node(op_type, read, [f"t{number}"], f"{op_type}_{number}"))
    used = {name for node in nodes for name in node.input}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE])
        for name in ("x", *(t for t in tensors if t not in used))
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "random", ends[:1], ends[1:], initializers)
    imports = [helper.make_opsetid("", 17)]
    return load_model(save(helper.make_model(graph, opset_imports=imports, ir_version=9), folder))


def types_in_source(found: Inspected, layer: str, op_type: str) -> set[str]:
    """Return the types in which the engine's own code computes a layer."""
    text = found.engine.decode("latin1")
    tensors: dict[str, str] = {}
    types: set[str] = set()
    for line in text.split("\n"):
        if match := re.search(r' name="([^"]*)".* type=(\w+) \}', line):
            tensors[match.group(1)] = match.group(2)
        elif f"[ONNX Layer: {layer}]" in line and (
            match := re.search(r"[ {]input=\{(.*?)\}", line)
        ):
            read = [tensors[name] for name in re.findall(r'"([^"]*)"', match.group(1))]
            types.update(read[:1] if op_type == "MatMul" else read)
    kernels = {known.tactic for known in found.layers if layer in known.nodes} - {""}
    for source in text.split('extern "C" __global__ void ')[1:]:
        if source.partition("(")[0] in kernels:
            types.update(re.findall(rf"= __myln_{op_type.lower()}___myln_(\w+?)___", source))
    return types


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("seed", [0, 1, *nightly(2, 3)])
def test_verdicts_are_what_the_kernels_do(
    rtx: Flavour, tmp_path: Path, seed: int, low: LowName, guard: bool
) -> None:
    """No honoured layer computes low, no demoted one computes FP32, and few are left open."""
    model = random_model(seed, tmp_path)
    rng = np.random.default_rng(seed)
    kept = [name for name in model.table.names if rng.random() < 0.4]
    found = inspect(rtx, model, kept, tmp_path, Target(low=low, guard=guard))
    decided = {
        layer: honour for layer, honour in found.honours.items() if honour in (HONOURED, DEMOTED)
    }
    shown = {
        layer: types
        for layer in decided
        if (types := types_in_source(found, layer, layer.partition("_")[0]))
    }
    wanted = {HONOURED: {"float"}, DEMOTED: {{"fp16": "half", "bf16": "bf16"}[low]}}
    assert {layer: wanted[decided[layer]] for layer in shown} == shown
    assert len(shown) >= len(kept) - 1
