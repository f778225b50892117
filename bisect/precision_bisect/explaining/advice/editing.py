"""Changes to a copy of a graph: other constants, products put in, roundings taken out."""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import Names, copied, refill


class Editor:
    """Edits a copy of a model's main graph; `edited` gives it. The model itself stays as it is."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = copied(proto)
        self._names = Names(self._proto.graph)
        self._nodes = list(self._proto.graph.node)
        self._number = 0

    def scale_reads(
        self, name: str, readers: Collection[str], factor: float | NDArray[Any]
    ) -> None:
        """Have the nodes of these names read the tensor times the factor, which broadcasts."""
        product = self._product(name, self._new("value"), factor)
        self._reroute(name, product.output[0], readers)
        self._nodes.insert(self._behind(name), product)

    def scale_made(self, name: str, factor: float) -> None:
        """Have the tensor be what is made under its name, times the factor."""
        place = self._behind(name)
        maker = self._nodes[place - 1]
        raw = self._new("value")
        for i, each in enumerate(maker.output):
            if each == name:
                maker.output[i] = raw
        self._nodes.insert(place, self._product(raw, name, factor))

    def replace(
        self, name: str, values: NDArray[Any], readers: Collection[str] | None = None
    ) -> None:
        """Have the nodes of these names, or all, read these values instead of a tensor."""
        self._reroute(name, self._constant(values), readers)

    def without_quantization(self) -> None:
        """Have what is quantized and dequantized again pass as it is; weights stay quantized."""
        made = {out: node for node in self._nodes for out in node.output}
        for place, node in enumerate(self._nodes):
            maker = made.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if maker is not None and maker.op_type == "QuantizeLinear":
                self._nodes[place] = onnx.helper.make_node(
                    "Identity", maker.input[:1], node.output, name=node.name
                )

    def edited(self) -> onnx.ModelProto:
        """Return the model with every change."""
        refill(self._proto.graph.node, self._nodes)
        return self._proto

    def _reroute(self, name: str, other: str, readers: Collection[str] | None) -> None:
        for node in self._nodes:
            if readers is None or node.name in readers:
                for i, each in enumerate(node.input):
                    if each == name:
                        node.input[i] = other

    def _behind(self, name: str) -> int:
        places = [i for i, node in enumerate(self._nodes) if name in node.output]
        return places[0] + 1 if places else 0

    def _product(self, source: str, out: str, factor: float | NDArray[Any]) -> onnx.NodeProto:
        operands = [source, self._constant(np.array(factor, np.float32))]
        return onnx.helper.make_node("Mul", operands, [out], name=self._new("Mul"))

    def _constant(self, values: NDArray[Any]) -> str:
        name, held = self._new("constant"), np.asarray(values)
        self._proto.graph.initializer.append(onnx.numpy_helper.from_array(held, name))
        return name

    def _new(self, what: str) -> str:
        self._number += 1
        return self._names(f"precision_bisect/advised/{what}_{self._number}")
