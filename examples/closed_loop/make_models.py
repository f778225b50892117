"""Make two models that run in a loop, with inputs: a denoiser, and a decoder with its cache.

Both have random weights of a fixed seed. The denoiser is one Euler step of a diffusion sampler, of
noise that falls from 80 to 0 in ten steps, with the schedule inside. The decoder is one block of a
transformer; it takes the keys and values of the places before, and gives them with its own.

    python make_models.py [FOLDER]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

STEPS = 10
CHANNELS, SIZE, HIDDEN = 4, 16, 24
VOCABULARY, WIDTH, HEADS, LONGEST = 97, 64, 4, 64
PROMPT, SAMPLES = 5, 4


class Net:
    """Collects nodes and weights; weights are drawn in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node; return its output."""
        name = out or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: Any, dtype: str = "float32") -> str:
        """Add a constant; return its name."""
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def drawn(self, *shape: int, gain: float = 1.0) -> str:
        """Add a weight whose products keep the size of what they multiply, times a gain."""
        fan_in = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        return self.constant(self.rng.normal(size=shape) * gain / np.sqrt(fan_in))

    def silu(self, x: str) -> str:
        """Add x * sigmoid(x)."""
        return self.add("Mul", x, self.add("Sigmoid", x))

    def norm(self, x: str) -> str:
        """Add a LayerNormalization of the last axis, as older exporters take it apart."""
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        squares = self.add("Pow", centred, self.constant(2.0))
        variance = self.add("ReduceMean", squares, axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(1e-5)))
        return self.add("Div", centred, deviation)

    def save(
        self,
        path: Path,
        inputs: Mapping[str, tuple[int, Sequence[int | str]]],
        outputs: Mapping[str, Sequence[int | str]],
    ) -> None:
        """Write the model; inputs have a type and a shape, outputs are floats."""
        given = [helper.make_tensor_value_info(n, kind, s) for n, (kind, s) in inputs.items()]
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()]
        graph = helper.make_graph(self.nodes, path.stem, given, made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        onnx.checker.check_model(model)
        onnx.save(model, path)


def make_denoiser(path: Path) -> None:
    """Write the model: latent (1, 4, 16, 16) and step (1,) to the next latent."""
    net = Net(1)
    sigmas = np.append(80.0 * (0.02 / 80.0) ** (np.arange(STEPS) / (STEPS - 1)), 0.0)
    table = net.constant(sigmas[:, None, None, None])
    one = net.constant([1], "int64")
    sigma = net.add("Gather", table, "step")
    next_sigma = net.add("Gather", table, net.add("Add", "step", one))
    # To about unit size, whatever the noise.
    total = net.add("Sqrt", net.add("Add", net.add("Mul", sigma, sigma), net.constant(0.25)))
    x = net.add("Div", "latent", total)
    loud = net.add("Mul", net.add("Log", sigma), net.drawn(1, HIDDEN, 1, 1))
    x = net.add("Conv", x, net.drawn(HIDDEN, CHANNELS, 3, 3), pads=[1] * 4)
    x = net.silu(net.add("Add", x, loud))
    for _ in range(2):
        inner = net.silu(net.add("Conv", x, net.drawn(HIDDEN, HIDDEN, 3, 3), pads=[1] * 4))
        x = net.add(
            "Add", x, net.add("Conv", inner, net.drawn(HIDDEN, HIDDEN, 3, 3), pads=[1] * 4)
        )
    image = net.add("Tanh", net.add("Conv", x, net.drawn(CHANNELS, HIDDEN, 3, 3), pads=[1] * 4))
    slope = net.add("Div", net.add("Sub", "latent", image), sigma)
    change = net.add("Mul", slope, net.add("Sub", next_sigma, sigma))
    net.add("Add", "latent", change, out="next_latent")
    shape = (1, CHANNELS, SIZE, SIZE)
    net.save(
        path,
        {"latent": (TensorProto.FLOAT, shape), "step": (TensorProto.INT64, (1,))},
        {"next_latent": shape},
    )


def make_decoder(path: Path) -> None:
    """Write the model: ids and positions (1, S), past keys and values (1, 4, P, 16) to logits."""
    net = Net(2)
    each = WIDTH // HEADS
    heads = net.constant([1, -1, HEADS, each], "int64")
    flat = net.constant([1, -1, WIDTH], "int64")

    def split(x: str) -> str:
        projected = net.add("MatMul", x, net.drawn(WIDTH, WIDTH))
        return net.add("Transpose", net.add("Reshape", projected, heads), perm=[0, 2, 1, 3])

    places = net.add("Gather", net.drawn(LONGEST, WIDTH, gain=4.0), "positions")
    x = net.add("Add", net.add("Gather", net.drawn(VOCABULARY, WIDTH, gain=8.0), "ids"), places)
    x = net.norm(x)
    query, key, value = split(x), split(x), split(x)
    key = net.add("Concat", "past.key", key, axis=2, out="present.key")
    value = net.add("Concat", "past.value", value, axis=2, out="present.value")
    scores = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.add("Mul", scores, net.constant(3.0 / np.sqrt(each)))
    # A place sees those up to itself.
    length = net.add("Gather", net.add("Shape", key), net.constant(2, "int64"))
    zero, one = net.constant(0, "int64"), net.constant(1, "int64")
    seen = net.add("Range", zero, length, one)
    last = net.constant([2], "int64")
    hidden = net.add("Greater", seen, net.add("Unsqueeze", "positions", last))
    hidden = net.add("Unsqueeze", hidden, net.constant([1], "int64"))
    scores = net.add("Where", hidden, net.constant(-1e4), scores)
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), value)
    mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
    x = net.add("Add", x, net.add("MatMul", mixed, net.drawn(WIDTH, WIDTH)))
    inner = net.silu(net.add("MatMul", net.norm(x), net.drawn(WIDTH, 2 * WIDTH)))
    x = net.norm(net.add("Add", x, net.add("MatMul", inner, net.drawn(2 * WIDTH, WIDTH))))
    net.add("MatMul", x, net.drawn(WIDTH, VOCABULARY), out="logits")
    cache = (TensorProto.FLOAT, (1, HEADS, "past", each))
    ids = (TensorProto.INT64, (1, "places"))
    grown = (1, HEADS, "total", each)
    net.save(
        path,
        {"ids": ids, "positions": ids, "past.key": cache, "past.value": cache},
        {"logits": (1, "places", VOCABULARY), "present.key": grown, "present.value": grown},
    )


def main(folder: Path) -> None:
    """Write the models, and a folder of inputs for each."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    make_denoiser(folder / "denoiser.onnx")
    make_decoder(folder / "decoder.onnx")
    empty: NDArray[np.float32] = np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32)
    for number in range(SAMPLES):
        noise = 80.0 * rng.normal(size=(1, CHANNELS, SIZE, SIZE))
        samples: dict[str, dict[str, NDArray[Any]]] = {
            "denoiser": {"latent": noise.astype(np.float32), "step": np.array([0])},
            "decoder": {
                "ids": rng.integers(0, VOCABULARY, (1, PROMPT)),
                "positions": np.arange(PROMPT)[None],
                "past.key": empty,
                "past.value": empty,
            },
        }
        for name, arrays in samples.items():
            inputs = folder / f"{name}-inputs"
            inputs.mkdir(exist_ok=True)
            np.savez(inputs / f"{number}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
