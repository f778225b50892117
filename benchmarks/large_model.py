"""A model with thousands of candidate layers, drawn from a seed, for `large.py`.

A residual stream of shape (tokens, WIDTH) goes through blocks of 15 layers: a LayerNorm spelled
out in nine operators, as exporters before opset 17 write it, then MatMul, Add, Relu, MatMul, Add,
and the Add into the stream. A tail of five layers makes the output, shape (tokens, WIDTH).

A few blocks find the stream with one outlier channel, as large transformers have them: the block
before writes it, and the block itself takes it out again. Its square is beyond FP16's largest
value.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WIDTH = 128
"""Channels of the stream, by default."""
BLOCK_LAYERS = 15
TAIL_LAYERS = 5
OUTLIER = 400.0
"""What the outlier channel holds; the square of 256 is FP16's end."""
BLOCKS_PER_OUTLIER = 80
SHARE = 0.05
"""How large what one block adds to the stream is, beside what it reads."""

_MOST_IN_ONE_FILE = 2**31 - 2**20
"""Bytes of weights; protobuf takes 2 GiB."""

Floats = NDArray[np.float32]


def make(
    folder: Path, layers: int, tokens: int, inputs: int, width: int = WIDTH
) -> tuple[Path, Path]:
    """Write the largest such model of at most `layers` candidates, and its inputs.

    Returns the paths of the model and of the folder with the inputs, each `x` of shape
    (tokens, width). The weights of a model of 2 GB or more lie in `large.onnx.data`.
    """
    blocks = (layers - TAIL_LAYERS) // BLOCK_LAYERS
    rng = np.random.default_rng(0)
    weights: dict[str, Floats] = {"eps": np.array(1e-5, np.float32)}
    weights["two"] = np.array(2.0, np.float32)
    for block in range(blocks):
        weights |= _block_weights(rng, f"/blocks.{block}", width)
    channel = width // 3
    for block in hot_blocks(blocks):
        weights[f"/blocks.{block - 1}/b2"][channel] += OUTLIER
        weights[f"/blocks.{block}/b2"][channel] -= OUTLIER
    weights |= {
        "head/scale": _drawn(rng, width, size=0.1, around=1.0),
        "head/w": _drawn(rng, width, width, size=width**-0.5),
        "head/b": _drawn(rng, width, size=0.1),
        "head/out": _drawn(rng, width, size=0.1, around=1.0),
    }
    path = folder / "large.onnx"
    large = sum(array.nbytes for array in weights.values()) >= _MOST_IN_ONE_FILE
    onnx.save(
        _model(blocks, tokens, weights),
        path,
        save_as_external_data=large,
        location=f"{path.name}.data" if large else None,
    )
    onnx.checker.check_model(path)
    samples = folder / "inputs"
    samples.mkdir(exist_ok=True)
    for number in range(inputs):
        np.savez(samples / f"{number}.npz", x=_drawn(rng, tokens, width, size=1.0))
    return path, samples


def hot_blocks(blocks: int) -> Sequence[int]:
    """Return the blocks whose LayerNorms overflow, evenly spread and never the first."""
    count = max(1, blocks // BLOCKS_PER_OUTLIER)
    return [max(1, (2 * each + 1) * blocks // (2 * count)) for each in range(count)]


def _drawn(rng: np.random.Generator, *shape: int, size: float, around: float = 0.0) -> Floats:
    return (around + size * rng.standard_normal(shape)).astype(np.float32)


def _block_weights(rng: np.random.Generator, scope: str, width: int) -> dict[str, Floats]:
    return {
        f"{scope}/gamma": _drawn(rng, width, size=0.1, around=1.0),
        f"{scope}/beta": _drawn(rng, width, size=0.1),
        f"{scope}/w1": _drawn(rng, width, width, size=width**-0.5),
        f"{scope}/b1": _drawn(rng, width, size=0.1),
        f"{scope}/w2": _drawn(rng, width, width, size=SHARE * width**-0.5),
        f"{scope}/b2": _drawn(rng, width, size=0.1 * SHARE),
    }


def _model(blocks: int, tokens: int, weights: Mapping[str, Floats]) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    stream = "x"
    for block in range(blocks):
        stream = _block(nodes, f"/blocks.{block}", stream)
    tail = [("Mul", "head/scale"), ("MatMul", "head/w"), ("Add", "head/b"), ("Tanh", "")]
    for op_type, operand in [*tail, ("Mul", "head/out")]:
        name = f"/head/{op_type}_{len(nodes)}"
        stream = _node(nodes, op_type, name, stream, *filter(None, [operand]))
    nodes[-1].output[0] = "y"
    shape = [tokens, weights["head/b"].size]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    # Opset 13 has no LayerNormalization; ReduceMean takes its axes as an attribute.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _block(nodes: list[onnx.NodeProto], scope: str, stream: str) -> str:
    """Append one block's layers and return the name of the stream after it."""

    def add(op_type: str, number: int, *operands: str, **attributes: Any) -> str:
        return _node(nodes, op_type, f"{scope}/{op_type}_{number}", *operands, **attributes)

    mean = add("ReduceMean", 0, stream, axes=[-1])
    centred = add("Sub", 0, stream, mean)
    squared = add("Pow", 0, centred, "two")
    variance = add("ReduceMean", 1, squared, axes=[-1])
    deviation = add("Sqrt", 0, add("Add", 0, variance, "eps"))
    scaled = add("Mul", 0, add("Div", 0, centred, deviation), f"{scope}/gamma")
    normed = add("Add", 1, scaled, f"{scope}/beta")
    first = add("Add", 2, add("MatMul", 0, normed, f"{scope}/w1"), f"{scope}/b1")
    second = add("MatMul", 1, add("Relu", 0, first), f"{scope}/w2")
    return add("Add", 4, add("Add", 3, second, f"{scope}/b2"), stream)


def _node(
    nodes: list[onnx.NodeProto], op_type: str, name: str, *operands: str, **attributes: Any
) -> str:
    output = f"{name}_output_0"
    nodes.append(helper.make_node(op_type, operands, [output], name, **attributes))
    return output
