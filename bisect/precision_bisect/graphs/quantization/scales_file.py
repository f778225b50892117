"""Scales in a run folder, `scales.json`, so that a finished run can be exported and built again.

    {"activations": {"x": 0.03125}, "weights": {"w": {"axis": 0, "values": [0.001, 0.002]}}}

Values are FP32 and come back bit for bit. A weight whose `axis` is null has one value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from precision_bisect.errors import RunFolderError
from precision_bisect.graphs.quantization.scales import Scales, WeightScale
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import SCALES, RunFolder
from precision_bisect.runs.typed_json import Count, read_typed

_Scale: TypeAlias = Annotated[float, Meta(gt=0, lt=1e39)]
"""Larger ones are no FP32."""
_AGAIN = "run the search again, which calibrates again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    axis: Count | None
    values: Annotated[Sequence[_Scale], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.axis is None and len(self.values) > 1:
            raise ValueError(f"{len(self.values)} scales are along no axis")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    activations: Mapping[str, _Scale]
    weights: Mapping[str, _Weight]


def write_scales(folder: RunFolder, scales: Scales) -> None:
    """Write the scales into the run folder. Raises RunFolderError where it cannot be written."""
    contents = _Contents(
        activations=scales.activations,
        weights={
            name: _Weight(axis=scale.axis, values=scale.values.reshape(-1).tolist())
            for name, scale in scales.weights.items()
        },
    )
    folder.write(SCALES, plain_json.dumps(contents) + "\n")


def read_scales(folder: Path) -> Scales:
    """Return the scales that a run has left in its folder.

    Raises RunFolderError where there are none, or the file does not hold scales.
    """
    file = folder / SCALES
    try:
        told = read_typed(_Contents, file)
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}", _AGAIN) from error
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: it holds no scales ({error})", _AGAIN) from error
    return Scales(
        activations=dict(told.activations),
        weights={name: _weight(each) for name, each in told.weights.items()},
    )


def _weight(told: _Weight) -> WeightScale:
    # One scale for the whole tensor has the shape (), not (1,).
    values = np.array(told.values[0] if told.axis is None else told.values, np.float32)
    return WeightScale(axis=told.axis, values=values)
