"""Concrete shapes for dynamic inputs: `--input-shapes x:1x3x224x224,y:1x8`."""

from collections.abc import Mapping

from precision_bisect.errors import InputError
from precision_bisect.graphs.types import TensorSpec

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
        made_up = ["1", *("8" for _ in shape[1:])]
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
