"""Which sizes of images fit a network that leaves them open, and halves them several times."""

import math
from collections.abc import Iterator

import numpy as np

from precision_bisect.errors import InputError, PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.protocols import Sample

_HALVING = frozenset(("Conv", "MaxPool", "AveragePool", "LpPool"))
_ENLARGING = frozenset(("Resize", "Upsample", "ConvTranspose", "DepthToSpace"))
_LARGEST_STRIDE = 256


def with_fitting_size(error: InputError, model: Model, sample: Sample) -> InputError:
    """Return the error of a run with images, with a size that was tried where others fit."""
    for name, height, width in _open_images(model, sample):
        stride = _stride(View(model), name)
        # Slices may halve an image, too, before the first layer.
        for multiple in (stride, 2 * stride):
            high, wide = (math.ceil(side / multiple) * multiple for side in (height, width))
            if 1 < multiple <= _LARGEST_STRIDE and _runs(model, sample, name, high, wide):
                return InputError(
                    error.message,
                    f"--image-size {wide}x{high} was tried and fits: multiples of {multiple}",
                )
    return error


def _open_images(model: Model, sample: Sample) -> Iterator[tuple[str, int, int]]:
    """Yield the inputs whose last two dimensions are open, with their sizes in the sample."""
    for spec in model.inputs:
        shape = spec.shape or ()
        if len(shape) == 4 and not any(isinstance(side, int) for side in shape[-2:]):
            yield spec.name, *sample[spec.name].shape[-2:]


def _stride(view: View, start: str) -> int:
    """Return how many pixels the smallest map of an image takes for one, as far as is seen."""
    strides = {start: 1}
    for node in view.nodes:
        reached = [strides[name] for name in node.input if name in strides]
        if not reached:
            continue
        steps = attribute(node, "strides")
        stride, step = max(reached), max(steps.ints if steps is not None else (), default=1)
        if node.op_type in _HALVING:
            stride *= step
        elif node.op_type in _ENLARGING:
            stride = max(1, stride // max(step, 2))
        strides.update(dict.fromkeys(node.output, stride))
    return max(strides.values())


def _runs(model: Model, sample: Sample, name: str, height: int, width: int) -> bool:
    shape = (*sample[name].shape[:2], height, width)
    try:
        reference_outputs(model, [{**sample, name: np.zeros(shape, sample[name].dtype)}])
    except PrecisionBisectError:
        return False
    return True
