"""Scales in a run folder, `scales.json`, so that a finished run can be exported and built again.

    {"activations": {"x": 0.03125}, "weights": {"w": {"axis": 0, "values": [0.001, 0.002]}}}

Values are FP32 and come back bit for bit. A weight whose `axis` is null has one value.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from precision_bisect.errors import RunFolderError
from precision_bisect.quantization.scales import Scales, WeightScale
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.runfolder import SCALES, RunFolder

_AGAIN = "run the search again, which calibrates again"


def write_scales(folder: RunFolder, scales: Scales) -> None:
    """Write the scales into the run folder. Raises RunFolderError where it cannot be written."""
    plain = {
        "activations": dict(scales.activations),
        "weights": {
            name: {"axis": scale.axis, "values": scale.values.reshape(-1).tolist()}
            for name, scale in scales.weights.items()
        },
    }
    folder.write(SCALES, plain_json.dumps(plain) + "\n")


def read_scales(folder: Path) -> Scales:
    """Return the scales that a run has left in its folder.

    Raises RunFolderError where there are none, or the file does not hold scales.
    """
    file = folder / SCALES
    try:
        plain = plain_json.read(file)
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}", _AGAIN) from error
    except ValueError as error:
        raise RunFolderError(f"{file} is not JSON", _AGAIN) from error
    try:
        return Scales(
            activations=dict(_activations(plain["activations"])),
            weights=dict(_weights(plain["weights"])),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged: it holds no scales", _AGAIN) from error


def _activations(plain: Any) -> Iterator[tuple[str, float]]:
    for name, value in plain.items():
        yield name, _scale(value)


def _weights(plain: Any) -> Iterator[tuple[str, WeightScale]]:
    for name, entry in plain.items():
        axis, values = entry["axis"], [_scale(value) for value in entry["values"]]
        if not values or (axis is None and len(values) > 1):
            raise ValueError(f"{name!r} has {len(values)} scales")
        # `True` is an int to Python.
        if axis is not None and (type(axis) is not int or axis < 0):
            raise ValueError(f"the axis of {name!r} is {axis!r}")
        array = np.array(values, np.float32)
        # One scale for the whole tensor has the shape (), not (1,).
        yield name, WeightScale(axis=axis, values=array if axis is not None else array[0])


def _scale(value: Any) -> float:
    """Return a scale. Raises ValueError for what is no positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no scale")
    return float(value)
