"""The constants that layers read in the switched graph, in every form that some plan asks for."""

from collections.abc import MutableMapping

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.tf32 import round_to_tf32
from precision_bisect.graphs.constant_values import Constants
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.quantization.scales import Scales, dequantized, quantized
from precision_bisect.graphs.weights import INLINE_BYTES, Weights, stub
from precision_bisect.precisions import Form

EXACT = Form(stored="fp32")


class LayerWeights:
    """The constants that layers read: a rounded copy is made when a form first asks for it.

    A switch per weight at run time would round gigabytes in every trial. `initializers` are added
    to those of the model; `held` has the values of those that are stubs. `shared` has copies that
    other graphs of the model hold, by their names there, and takes those of this one.
    """

    def __init__(
        self,
        constants: Constants,
        scales: Scales,
        shared: MutableMapping[str, NDArray[np.generic]],
    ) -> None:
        self._constants = constants
        self._scales = scales
        self._shared = shared
        self._names: dict[tuple[str, Form], str] = {}
        self._added: dict[str, NDArray[np.generic]] = {}
        self.initializers: list[onnx.TensorProto] = []
        self.held: Weights = {}
        for name in sorted(constants.folded):
            self._add(f"precision_bisect/constant/{name}", constants.values[name])

    def __contains__(self, name: str) -> bool:
        return name in self._constants.values

    def named(self, name: str, form: Form, *, operand: bool) -> str:
        """Return the name of a constant in a form; its own where rounding changes nothing.

        `operand` tells that a quantized layer quantizes it: it is no bias.
        """
        wanted = form if operand else Form(stored=form.stored)
        if (name, wanted) not in self._names:
            self._names[name, wanted] = self._make(name, wanted)
        return self._names[name, wanted]

    def rounded_to_tf32(self, name: str) -> str:
        """Return the name of a constant that `named` gave, with its values rounded to TF32."""
        wanted = f"precision_bisect/tf32/{name}"
        array = self.array(name)
        if wanted not in self._added and array is not None:
            rounded = self._shared.get(wanted)
            if rounded is None:
                rounded = round_to_tf32(array.astype(np.float32, copy=False))
            self._add(wanted, rounded)
            self._shared[wanted] = rounded
        return wanted

    def array(self, name: str) -> NDArray[np.generic] | None:
        """Return the values of a name that `named` gave; None for any other."""
        return self._added.get(name, self._constants.values.get(name))

    def _make(self, name: str, form: Form) -> str:
        exact = f"precision_bisect/constant/{name}" if name in self._constants.folded else name
        if form == EXACT:
            return exact
        types = form.stored if form.quantized is None else f"{form.quantized}-{form.stored}"
        own = f"precision_bisect/{types}/{name}"
        # What is quantized depends on its scale as well.
        if form.quantized is None and (shared := self._shared.get(own)) is not None:
            self._add(own, shared)
            return own
        # A memory map's arithmetic makes maps, which takes longer.
        values = np.asarray(self._constants.values[name]).astype(np.float32, copy=False)
        rounded = values
        if form.quantized:
            scale, kind = self._scales.weights[name], QUANTIZED[form.quantized]
            rounded = dequantized(quantized(values, scale, kind), scale)
        if form.stored != "fp32":
            rounded = LOW_TYPES[form.stored].round(rounded)
        # Equal values share one name, so the layer needs no second version.
        if np.array_equal(rounded, values, equal_nan=True):
            return exact
        self._add(own, rounded)
        if form.quantized is None:
            self._shared[own] = rounded
        return own

    def _add(self, name: str, array: NDArray[np.generic]) -> None:
        self._added[name] = array
        if array.nbytes > INLINE_BYTES:
            self.held[name] = array
            self.initializers.append(stub(name, array))
        else:
            self.initializers.append(onnx.numpy_helper.from_array(array, name))
