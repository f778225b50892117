"""Concrete shapes: those of `--input-shapes`, and those in which outputs really come."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_bisect.errors import InputError
from precision_bisect.graphs.graph import copied
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.protocols import Sample

Shapes = Mapping[str, tuple[int, ...]]


def concrete_shape(spec: TensorSpec, shapes: Shapes) -> tuple[int, ...]:
    """Return the shape to make up an input in: as asked for, else as the model says.

    A dynamic first dimension is taken as a batch of 1. Raises InputError for other dynamic
    dimensions that nothing settles, and for a shape that does not fit the model's.
    """
    if spec.name in shapes:
        concrete = shapes[spec.name]
        if not fits(spec, concrete):
            raise InputError(
                f"--input-shapes gives {spec.name!r} the shape {show(concrete)}, "
                f"but the model wants {show(spec.shape)}",
                "only sizes that the model leaves open can be chosen",
            )
        return concrete
    shape = spec.shape or ()
    unknown = [d for d in shape[1:] if not isinstance(d, int)]
    if spec.shape is None or unknown:
        # Networks of images seldom take ones of 8 pixels: what is said should run as it is.
        image = len(shape) == 4 and not {1, 3, 4}.isdisjoint(shape[1:])
        made_up = ["1", *("224" if image else "8" for _ in shape[1:])]
        dims = [str(d) if isinstance(d, int) else made_up[i] for i, d in enumerate(shape)]
        example = "x".join(dims) or "1x8"
        raise InputError(
            f"input {spec.name!r} has a dynamic shape {show(spec.shape)}",
            f"give --inputs, or a shape such as --input-shapes {spec.name}:{example}",
        )
    return tuple(d if isinstance(d, int) else 1 for d in shape)


def fits(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Tell whether an array of `shape` may be fed to the input."""
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(
        not isinstance(want, int) or want == have
        for want, have in zip(spec.shape, shape, strict=True)
    )


def show(shape: tuple[int | str | None, ...] | None) -> str:
    """Return a shape for people: `(1, 3, height, ?)`."""
    if shape is None:
        return "of unknown rank"
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


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
