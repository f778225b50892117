"""What is added to a graph so that values change type: Casts, low weights, quantization."""

from typing import Any

import numpy as np
import onnx
from onnx import helper

from precision_bisect.graphs.constant_values import TypedConstants
from precision_bisect.graphs.fp32_form import GUARD_PREFIX
from precision_bisect.graphs.graph import Names
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, LowType, QuantizedType
from precision_bisect.graphs.quantization.scales import Scales, WeightScale, quantized
from precision_bisect.graphs.typed.typed_graph import Quantization, TypedWeight, chunks, converted
from precision_bisect.graphs.weights import INLINE_BYTES, make_stub
from precision_bisect.precisions import HighName

PREFIX = "precision_bisect"
_FLOAT = onnx.TensorProto.FLOAT


class Added:
    """Adds nodes to `nodes` and constants to `initializers`, each once for all who ask for it.

    `weights` has the values of all stubs, those of the model too. Tensors are named as in the
    model; a `stored` one is given with its name in the graph and the type that it is stored in.
    """

    def __init__(
        self, model: Model, constants: TypedConstants, scales: Scales, names: Names
    ) -> None:
        self._constants = constants
        self._scales = scales
        self._names = names
        self._made: dict[tuple[str, str], str] = {}
        self._casts: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.weights = {
            name: TypedWeight(source=array, dtype=array.dtype)
            for name, array in model.weights.items()
        }

    def cast(self, tensor: str, source: str, to: LowType | None) -> str:
        """Return the name of `source` in a 16-bit type, or in FP32 for None."""
        key = (tensor, to.name if to else "fp32")
        if key not in self._made:
            self._made[key] = self._names(_cast_name(tensor, to))
            self.append_cast(tensor, source, self._made[key], to)
        return self._made[key]

    def append_cast(self, tensor: str, source: str, out: str, to: LowType | None) -> None:
        """Append a Cast that writes `out`."""
        self._casts.add(out)
        kind, name = to.onnx_type if to else _FLOAT, self._names(_cast_name(tensor, to))
        self.nodes.append(helper.make_node("Cast", [source], [out], name=name, to=kind))

    def low_constant(self, tensor: str, low: LowType, factor: float = 1.0) -> str | None:
        """Return the low copy of a constant times a factor.

        None if its values are not in the file, or lose their digits by the factor.
        """
        array = self._constants.array(tensor)
        if array is None:
            return None
        wish = f"{PREFIX}/weight/{self._constants.source(tensor)}/{low.name}"
        if factor != 1:
            most = max((float(np.abs(part).max()) for part in chunks(array)), default=0.0)
            if most and not low.smallest_normal <= abs(factor) * most <= low.largest:
                return None
            array, wish = array.astype(np.float32) * np.float32(factor), f"{wish}/{factor!r}"
        name = self._names(wish)
        if name not in self.initializers:
            self._store(name, low.onnx_type, TypedWeight(source=array, dtype=low.numpy_type))
        return name

    def product(self, wish: str, source: str, low: LowType, factor: float) -> str:
        """Append a product of the low tensor `source` with a factor; return its result."""
        values = converted(np.array(factor, np.float32), low.numpy_type)
        by = self._small(f"{PREFIX}/factor/{factor!r}/{low.name}", values)
        return self._append("Mul", f"{PREFIX}/factor/{wish}", source, by)

    def zero_state(self, source: str, low: LowType, shape: tuple[int, int, int]) -> str:
        """Append zeros of the low type, of the shape ways, batch, size; return their name.

        Of the batch `shape` has the axis of `source` that it is.
        """
        ways, axis, size = (
            self._small(f"{PREFIX}/number/{n}", np.array([n], np.int64)) for n in shape
        )
        wish = f"{PREFIX}/state/{source}/{shape[0]}/{shape[-1]}/{low.name}"
        if (source, wish) not in self._made:
            sizes = self._append("Shape", wish, source)
            batch = self._append("Gather", wish, sizes, axis)
            whole = self._append("Concat", wish, ways, batch, size, axis=0)
            zero = helper.make_tensor("value", low.onnx_type, [1], [0.0])
            self._made[source, wish] = self._append("ConstantOfShape", wish, whole, value=zero)
        return self._made[source, wish]

    def _append(self, op_type: str, wish: str, *inputs: str, **settings: Any) -> str:
        """Append a node, named after what is wished and its operator; return its result."""
        out = self._names(f"{wish}/{op_type}")
        self.nodes.append(helper.make_node(op_type, inputs, [out], out, **settings))
        return out

    def dequantized_activation(
        self, tensor: str, stored: tuple[str, HighName], kind: QuantizedType, to: HighName
    ) -> str:
        """Return an activation after its quantization, in the float type `to`."""
        values = np.array(self._scales.activations[tensor], np.float32)
        scale = WeightScale(axis=None, values=values)
        return self._dequantize(
            tensor, self._quantize(tensor, stored, kind, scale), kind, to, scale
        )

    def dequantized_weight(self, tensor: str, kind: QuantizedType, to: HighName) -> str:
        """Return a weight in the float type `to`, stored quantized if the file has its values.

        A weight that nodes compute from constants is quantized in the graph; the builder folds
        that.
        """
        scale, array = self._scales.weights[tensor], self._constants.array(tensor)
        if array is None:
            name = self._quantize(tensor, (tensor, "fp32"), kind, scale)
            return self._dequantize(tensor, name, kind, to, scale)
        name = self._names(f"{PREFIX}/weight/{tensor}/{kind.name}")
        if name not in self.initializers:
            quantization = Quantization(kind=kind, scale=scale)
            weight = TypedWeight(source=array, dtype=kind.numpy_type, quantization=quantization)
            self._store(name, kind.onnx_type, weight)
        return self._dequantize(tensor, name, kind, to, scale)

    def guard(self, wish: str, source: str) -> str:
        """Append the maximum of the tensor `source` and itself; return its result."""
        out = self._names(f"{GUARD_PREFIX}{wish}")
        self.nodes.append(helper.make_node("Max", [source, source], [out], name=out))
        return out

    def sealed(self, source: str) -> str:
        """Return the result of an added Cast behind a guard, other tensors as they are."""
        if source not in self._casts:
            return source
        if (source, "sealed") not in self._made:
            self._made[source, "sealed"] = self.guard(source, source)
        return self._made[source, "sealed"]

    def _quantize(
        self, tensor: str, stored: tuple[str, HighName], kind: QuantizedType, scale: WeightScale
    ) -> str:
        key, (source, stored_type) = (tensor, kind.name), stored
        if key in self._made:
            return self._made[key]
        name = self._made[key] = self._names(f"{PREFIX}/quantize/{tensor}/{kind.name}")
        # The zero point is given though it is 0: it tells the quantized type before opset 21.
        zeros = np.zeros(scale.values.shape, kind.numpy_type)
        zero_name = f"{PREFIX}/zero/{tensor}" if zeros.ndim else f"{PREFIX}/zero"
        zero = self._small(f"{zero_name}/{kind.name}", zeros)
        inputs = [source, self._scale(tensor, stored_type, scale), zero]
        node = helper.make_node("QuantizeLinear", inputs, [name], name=name, **_axis(scale))
        self.nodes.append(node)
        return name

    def _dequantize(
        self, tensor: str, source: str, kind: QuantizedType, to: HighName, scale: WeightScale
    ) -> str:
        key = (tensor, f"{kind.name} as {to}")
        if key not in self._made:
            name = self._names(f"{PREFIX}/dequantize/{tensor}/{kind.name}/{to}")
            inputs = [source, self._scale(tensor, to, scale)]
            self.nodes.append(
                helper.make_node("DequantizeLinear", inputs, [name], name=name, **_axis(scale))
            )
            self._made[key] = name
        return self._made[key]

    def _scale(self, tensor: str, stored: HighName, scale: WeightScale) -> str:
        """Return the scale as a constant of a float type."""
        values = np.asarray(scale.values, np.float32)
        if stored in LOW_TYPES:
            values = converted(values, LOW_TYPES[stored].numpy_type)
        return self._small(f"{PREFIX}/scale/{tensor}/{stored}", values)

    def _small(self, wish: str, values: np.ndarray) -> str:
        """Return the name of a constant whose values stay in the graph."""
        name = self._names(wish)
        if name not in self.initializers:
            self.initializers[name] = onnx.numpy_helper.from_array(values, name)
        return name

    def _store(self, name: str, kind: int, weight: TypedWeight) -> None:
        """Add a constant of the type `kind`: as a stub if the model's own is large."""
        array = weight.source
        # Compared by its FP32 size, so that all plans agree on what is a stub.
        if array.nbytes > INLINE_BYTES:
            tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
            make_stub(tensor)
            self.weights[name] = weight
        else:
            how = weight.quantization
            values = (
                quantized(array.astype(np.float32), how.scale, how.kind)
                if how
                else converted(array, weight.dtype)
            )
            tensor = onnx.numpy_helper.from_array(values, name)
        self.initializers[name] = tensor


def is_added(node: str) -> bool:
    """Tell whether a node of a typed graph, by its name, is none of the model's."""
    return node.startswith(f"{PREFIX}/")


def _cast_name(tensor: str, to: LowType | None) -> str:
    return f"{PREFIX}/cast/{tensor}/{to.name if to else 'fp32'}"


def _axis(scale: WeightScale) -> dict[str, Any]:
    return {} if scale.axis is None else {"axis": scale.axis}
