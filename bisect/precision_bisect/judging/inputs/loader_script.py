"""A data loader to fill in, for what nothing here reads."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from precision_bisect.errors import InputError, printable
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_shapes import show

_NAME = "load_data.py"
_SCRIPT = """\
# {name}: samples for {model}, to be used so:
#   precision-bisect {words} --inputs {name}
from pathlib import Path

import numpy as np


def load_data():
    for file in sorted(Path({folder!r}).glob({pattern!r})):
        # Read the file, and prepare it as the code in use does.
        yield {{
{inputs}
        }}
"""


class NeedsLoader(InputError):
    """Inputs that only a script of the user's own can make arrays of."""

    def __init__(self, message: str) -> None:
        super().__init__(message, f"fill in this as {_NAME}, and give --inputs {_NAME}:")


def loader_script(model: Path, specs: Sequence[TensorSpec], folder: Path, pattern: str) -> str:
    """Return a loader with the model's inputs, zeros in place of values.

    Open dimensions are 1 in it, and its comments have their names.
    """
    return _SCRIPT.format(
        name=_NAME,
        # Comments are of one line, whatever the path holds.
        model=printable(str(model)),
        words=printable(shlex.quote(str(model))),
        folder=str(folder),
        pattern=pattern,
        inputs="\n".join(_line(spec) for spec in specs),
    )


def _line(spec: TensorSpec) -> str:
    dims = tuple(d if isinstance(d, int) else 1 for d in spec.shape or ())
    what = ascii(f"{spec.dtype or 'of an unknown type'} {show(spec.shape)}").strip("'\"")
    if spec.dtype == "object":
        array = f"np.full({dims}, '', object)"
    elif spec.dtype == "bfloat16":
        array = f"np.zeros({dims}, __import__('ml_dtypes').bfloat16)"
    else:
        array = f"np.zeros({dims}, {spec.dtype or 'float32'!r})"
    return f"            # {what}\n            {spec.name!a}: {array},"
