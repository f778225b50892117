"""Outputs that come in another shape than the model declares."""

from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.graphs.graph import copied
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.input_shapes import fits, show
from precision_bisect.protocols import Sample


def with_true_shapes(model: Model, outputs: Sequence[Sample]) -> tuple[Model, Sequence[str]]:
    """Return the model with open shapes for outputs whose declaration is false, and remarks.

    ONNX Runtime only warns of such a declaration; what is written of the model must not repeat it.
    """
    come = {
        spec.name: [sample[spec.name].shape for sample in outputs if spec.name in sample]
        for spec in model.outputs
    }
    false = {
        spec.name: spec
        for spec in model.outputs
        # ONNX has no word for an output whose rank changes.
        if len({len(shape) for shape in come[spec.name]}) == 1
        and not all(fits(spec, shape) for shape in come[spec.name])
    }
    if not false:
        return model, ()
    proto = copied(model.proto)
    specs = []
    for spec, value in zip(model.outputs, proto.graph.output, strict=True):
        if spec.name not in false:
            specs.append(spec)
            continue
        rank = len(come[spec.name][0])
        shape = value.type.tensor_type.shape
        shape.Clear()
        for _ in range(rank):
            shape.dim.add()
        specs.append(replace(spec, shape=(None,) * rank))
    message = ", ".join(
        f"{name!r} is declared as {show(spec.shape)} and comes as {show(come[name][0])}"
        for name, spec in false.items()
    )
    return replace(model, proto=proto, outputs=tuple(specs)), [f"{message}: exports leave it open"]
