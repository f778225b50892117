"""Writes an ONNX model of any size: weights go to its data file as they are drawn.

At no time more than one weight is in memory. Names are those of torch's exporter before Dynamo.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ALIGNMENT = 4096
"""Bytes; where a weight begins in the data file is a multiple of it, so that it can be mapped."""

_INLINE = 1024
"""Smaller tensors, in bytes, lie in the model's file."""


class Graph:
    """A model that is being written: nodes and weights are added, `save` writes the model."""

    def __init__(self, path: Path, seed: int) -> None:
        self.parameters = 0
        self._path = path
        self._data = path.with_name(f"{path.name}.data")
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, TensorProto] = {}
        self._names: Counter[str] = Counter()
        self._data.write_bytes(b"")

    def node(self, op_type: str, scope: str, *operands: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.nodes(op_type, scope, *operands, outputs=1, **attributes)[0]

    def nodes(
        self, op_type: str, scope: str, *operands: str, outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node; return the names of its outputs."""
        name = f"{scope}/{op_type}"
        count = self._names[name]
        self._names[name] += 1
        name = f"{name}_{count}" if count else name
        made = [f"{name}_output_{place}" for place in range(outputs)]
        self._nodes.append(helper.make_node(op_type, operands, made, name, **attributes))
        return made

    def drawn(
        self, name: str, *shape: int, size: float, around: float = 0.0, first: float = 1.0
    ) -> str:
        """Add a weight of the normal distribution; return its name.

        `first` is a factor of the first channel along the wider axis of a matrix.
        """
        array = self._rng.standard_normal(shape, dtype=np.float32)
        array *= np.float32(size)
        if first != 1.0:
            np.moveaxis(array, int(np.argmax(shape)), 0)[0] *= np.float32(first)
        if around:
            array += np.float32(around)
        self.parameters += array.size
        return self.constant(name, array)

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a tensor, unless one has this name; return the name."""
        if name not in self._weights:
            inline = value.nbytes < _INLINE
            self._weights[name] = (
                numpy_helper.from_array(value, name) if inline else self._outside(name, value)
            )
        return name

    def number(self, value: float) -> str:
        """Add a scalar; return its name."""
        return self.constant(f"number_{value:g}", np.array(value, np.float32))

    def sizes(self, *values: int) -> str:
        """Add a list of integers, such as a shape; return its name."""
        return self.constant(f"sizes_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def save(
        self,
        inputs: Sequence[tuple[str, int, Sequence[int]]],
        output: tuple[str, Sequence[int]],
        opset: int,
    ) -> None:
        """Write the model and check it; what was added last becomes the output.

        An input is a name, an element type and a shape, the output a name and a shape.
        """
        name, shape = output
        self._nodes[-1].output[0] = name
        graph = helper.make_graph(
            self._nodes,
            self._path.stem,
            [helper.make_tensor_value_info(*each) for each in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
            list(self._weights.values()),
        )
        opsets = [helper.make_opsetid("", opset)]
        self._path.write_bytes(
            helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        )
        onnx.checker.check_model(self._path)

    def _outside(self, name: str, value: NDArray[Any]) -> TensorProto:
        """Append a tensor to the data file; return what refers to it."""
        with self._data.open("ab") as data:
            data.write(b"\0" * (-data.tell() % ALIGNMENT))
            offset = data.tell()
            value.tofile(data)
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            dims=value.shape,
            data_location=TensorProto.EXTERNAL,
        )
        placed = {"location": self._data.name, "offset": offset, "length": value.nbytes}
        for key, told in placed.items():
            tensor.external_data.add(key=key, value=str(told))
        return tensor
