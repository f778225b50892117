"""What a model says of its inputs and outputs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A model input or output: its name, numpy type name, and shape.

    A dimension is an int, the name of a symbolic one, or None where the file says nothing.
    `shape` is None for a tensor of unknown rank, `dtype` None for a type numpy does not have.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
