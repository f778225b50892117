"""The FP32 constants of a model: where their values are, and what a low type does to them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.layer_table import Exclusion
from precision_bisect.model.graph import attribute
from precision_bisect.model.load import Model
from precision_bisect.model.lowtypes import LowType
from precision_bisect.typed.chunks import chunks

_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """A weight that leaves the low type's range.

    `largest` is its largest finite magnitude. `overflowing` counts finite values that become
    infinite, `zeroed` values other than zero that become zero, `subnormal` values that stay above
    zero but below the smallest normal number, with fewer digits.
    """

    name: str
    largest: float
    overflowing: int
    zeroed: int
    subnormal: int


class TypedConstants:
    """The FP32 tensors of a model that depend on no input.

    Those in the file, as initializers or Constant nodes, have an `array`; those that other nodes
    compute from them have none. `names` has all of them.
    """

    def __init__(self, model: Model) -> None:
        self._weights = model.weights
        graph = model.proto.graph
        self._tensors = {t.name: t for t in graph.initializer if t.data_type == _FLOAT}
        self._same_as: dict[str, str] = {}
        self._exact: dict[tuple[str, str], bool] = {}
        constant = {
            layer.name for layer in model.table.layers if layer.exclusion is Exclusion.CONSTANT
        }
        self.names = set(self._tensors)
        for node in graph.node:
            if node.name in constant:
                self._take(node, model)

    def _take(self, node: onnx.NodeProto, model: Model) -> None:
        floats = [name for name in node.output if model.elem_types.get(name) == _FLOAT]
        self.names.update(floats)
        if not floats or node.domain not in ("", "ai.onnx"):
            return
        if _keeps_values(node, model):
            self._same_as[floats[0]] = self.source(node.input[0])
        elif node.op_type == "Constant":
            tensor = _value(node)
            if tensor is not None:
                self._tensors[floats[0]] = tensor

    def source(self, name: str) -> str:
        """Return the tensor whose values a constant has, `name` itself where it has its own."""
        return self._same_as.get(name, name)

    def array(self, name: str) -> NDArray[np.generic] | None:
        """Return the values of a constant, None where a node computes them."""
        name = self.source(name)
        if name in self._weights:
            return self._weights[name]
        tensor = self._tensors.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def is_exact(self, name: str, low: LowType) -> bool:
        """Tell whether the low type holds every value of a constant exactly."""
        name = self.source(name)
        asked = (name, low.name)
        if asked not in self._exact:
            array = self.array(name)
            self._exact[asked] = array is not None and all(
                np.array_equal(low.round(part), part, equal_nan=True) for part in chunks(array)
            )
        return self._exact[asked]

    def out_of_range(self, names: Iterable[str], low: LowType) -> Iterator[OutOfRange]:
        """Yield the constants among `names` with values that overflow or become zero."""
        seen = set()
        for name in names:
            source = self.source(name)
            array = self.array(source)
            if source in seen or array is None:
                continue
            seen.add(source)
            found = _range(source, array, low)
            if found.overflowing or found.zeroed:
                yield found


def _keeps_values(node: onnx.NodeProto, model: Model) -> bool:
    """Tell whether a node is an Identity, or a Cast of weights that the file has in 16 bits."""
    if node.op_type == "Identity":
        return True
    return node.op_type == "Cast" and model.elem_types.get(node.input[0]) == _FLOAT


def _range(name: str, array: NDArray[np.generic], low: LowType) -> OutOfRange:
    """Count by bounds, which takes a third of the time of rounding; ties go to the even side."""
    step = low.smallest_normal * 2.0 ** (1 - low.digits)
    # From half a step above the largest value on, rounding gives infinity.
    ulp_at_largest = low.largest * 2.0**-low.digits / (1 - 2.0**-low.digits)
    largest, overflowing, zeroed, subnormal = 0.0, 0, 0, 0
    for part in chunks(array):
        magnitude = np.abs(part[np.isfinite(part)])
        largest = max(largest, float(magnitude.max(initial=0)))
        overflowing += int(np.count_nonzero(magnitude >= low.largest + ulp_at_largest / 2))
        nonzero = int(np.count_nonzero(magnitude))
        # Half of the smallest step itself is a tie, and the even side is 0.
        kept = int(np.count_nonzero(magnitude > step / 2))
        zeroed += nonzero - kept
        normal = np.count_nonzero(magnitude >= low.smallest_normal - step / 2)
        subnormal += kept - int(normal)
    return OutOfRange(
        name=name, largest=largest, overflowing=overflowing, zeroed=zeroed, subnormal=subnormal
    )


def _value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return what a Constant node holds, None for a sparse one."""
    tensor = attribute(node, "value")
    if tensor is not None:
        return tensor.t
    floats = attribute(node, "value_floats")
    if floats is not None:
        return onnx.numpy_helper.from_array(np.array(floats.floats, np.float32))
    number = attribute(node, "value_float")
    return None if number is None else onnx.numpy_helper.from_array(np.array(number.f, np.float32))
