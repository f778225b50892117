"""The error of each tensor inside a real engine: `tensor_errors.json`, version 1.

A run writes it that ranks layers by what its engine shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_bisect.machine.plain_files import whole
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import TENSOR_ERRORS
from precision_bisect.runs.typed_json import Count, read_typed
from precision_bisect.trial import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """How far a tensor of the engine with every layer low is from that with every layer high.

    `rms` is the root mean square of the error relative to that of the values, where both are
    finite, of the worst sample; `largest` the largest error as a share of the largest value.
    `layer` makes the tensor in the model. It is not `finite` where it is only in FP32.
    """

    tensor: str
    layer: str
    rms: Figure
    largest: Figure
    finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorErrors:
    """The tensors that the engine has shown, of so many in the model, in network order.

    In the layers `born` NaN or Inf appears first: what they read is finite.
    """

    schema: Literal[1] = 1
    tensors: Sequence[TensorError] = ()
    of_tensors: Count = 0
    born: Sequence[str] = ()

    def save(self, folder: Path) -> None:
        """Write it into a run folder. Raises OSError."""
        with whole(folder / TENSOR_ERRORS) as stream:
            stream.write((plain_json.dumps(self, indent=1) + "\n").encode())


def read_tensor_errors(folder: Path) -> TensorErrors | None:
    """Return what a run folder has, None where it has none that can be read."""
    try:
        return read_typed(TensorErrors, folder / TENSOR_ERRORS)
    except (OSError, ValueError):
        return None
