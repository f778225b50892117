"""A finished run as `result.json` tells of it: untrusted input, checked field by field.

A ladder lists its `rungs`, the highest first: the layers of the one above the lowest are those
that the last search kept, the layers further up are fixed. Without `rungs` there is one pair.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.errors import RunFolderError
from precision_bisect.layer_table import SETTLED, LayerName
from precision_bisect.model.load import Model
from precision_bisect.model.shape_inputs import shape_inputs
from precision_bisect.options import ANSWER
from precision_bisect.precisions import (
    HIGH_NAMES,
    LOW_NAMES,
    QUANTIZED_NAMES,
    Form,
    HighName,
    Pair,
)
from precision_bisect.quantization.scales import Scales
from precision_bisect.quantization.scales_file import read_scales
from precision_bisect.results.chosen_point import find_point
from precision_bisect.results.endings import Status
from precision_bisect.results.result import Diagnosis
from precision_bisect.results.saved import (
    CULPRIT_LIST,
    CURVE_LIST,
    DIAGNOSIS_LIST,
    damaged,
    fields_of,
    quoted,
)
from precision_bisect.run_folder.json_values import Unfit
from precision_bisect.run_folder.runfolder import RESULT
from precision_bisect.typed.pinning import pin, pin_formless

_WITHOUT_ANSWER = (Status.NOT_PRECISION, Status.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run ended with.

    `kept` are candidates of the model, in network order, which stay in the pair's high type.
    `fixed` maps the layers of higher rungs to their precision, `pinned` the layers that were no
    candidates, because they cannot run low, to the reason; `shapes` each input to those that the
    samples had, as far as the file says. `fingerprint` is the run's. `path` is the file that
    says so.
    """

    kept: tuple[LayerName, ...]
    fixed: Mapping[LayerName, HighName]
    pinned: Mapping[LayerName, str]
    pair: Pair
    status: Status
    shapes: Mapping[str, Sequence[tuple[int, ...]]]
    diagnosis: Sequence[Diagnosis]
    fingerprint: Mapping[str, Any]
    path: Path

    def scales(self) -> Scales:
        """Return the scales that the run has left, none where nothing is INT8 or FP8.

        Raises RunFolderError where they are needed and cannot be read.
        """
        return read_scales(self.path.parent) if self.pair.low in QUANTIZED_NAMES else Scales()

    def settled(self, model: Model) -> Model:
        """Return the model with the layers pinned that were no candidates of the last search."""
        for name, precision in self.fixed.items():
            model = pin(model, {name: SETTLED}, Form(stored=precision))
        return pin(pin_formless(model, self.pair), self.pinned)


def read_finished(path: Path, model: Model, point: str = ANSWER) -> Finished:
    """Read a `result.json`, or the one in a run folder, that a run of this model has written.

    What is kept is that of the answer, or of another `point` of the curve. Raises RunFolderError
    for a file that is missing or no such result, that belongs to another model, names layers that
    the model does not have, or has no answer, and UsageError for a point that is not there.
    """
    file = path / RESULT if os.path.isdir(path) else path  # noqa: PTH112 - never raises
    fields = fields_of(file, "name the run folder or its result.json by --plan")
    _belongs(file, fields, model)
    try:
        status = Status(str(fields.get("status")))
    except ValueError as error:
        raise damaged(file, "status", fields.get("status")) from error
    rungs = _rungs(file, fields, model)
    fixed = {name: high for high, names in rungs[:-1] for name in names}
    pinned = {name: reason for name, reason in _pinned(file, fields).items() if name not in fixed}
    kept = _texts(file, "kept", fields.get("kept"))
    if point != ANSWER:
        kept = _pointed(file, fields, point)
    _check_names(file, [*kept, *pinned], model)
    # A search that was cut off before any plan passed has kept nothing, which is no answer.
    nothing = not kept and status is not Status.NOTHING_TO_KEEP
    if point == ANSWER and (status in _WITHOUT_ANSWER or nothing):
        raise RunFolderError(
            f"{file} has no answer: its status is {status.value!r}",
            "go on with the run by --resume, or search again with other limits",
        )
    wanted = frozenset(kept).difference(fixed)
    return Finished(
        kept=tuple(name for name in model.table.names if name in wanted),
        fixed=fixed,
        pinned=pinned,
        pair=_pair(file, fields.get("low"), rungs[-1][0]),
        status=status,
        shapes=_shapes(fields["fingerprint"].get("shapes"), model),
        diagnosis=_diagnosis(file, fields.get("diagnosis", [])),
        fingerprint=fields["fingerprint"],
        path=file,
    )


def _pointed(file: Path, fields: Mapping[str, Any], point: str) -> list[str]:
    """Return the layers that a point of the curve keeps. Raises UsageError."""
    try:
        curve = CURVE_LIST(fields.get("curve", []))
        culprits = CULPRIT_LIST(fields.get("culprits", []))
    except Unfit as error:
        raise damaged(file, "curve", error.value) from error
    return _texts(file, "curve", find_point(point, curve, culprits).kept)


def _belongs(file: Path, fields: Mapping[str, Any], model: Model) -> None:
    fingerprint = fields.get("fingerprint")
    digest = fingerprint.get("model") if isinstance(fingerprint, dict) else None
    if not isinstance(digest, str):
        raise damaged(file, "fingerprint", fingerprint)
    if digest != model.digest:
        raise RunFolderError(
            f"{file} belongs to another model than {model.path}, or the model has changed since",
            "give the model that was searched, or run the search again",
        )


def _shapes(value: object, model: Model) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of the samples; what is no list of sizes is left out.

    Of an input that gives a shape by its values these may be any numbers.
    """
    values = shape_inputs(model.proto.graph, model.inputs)
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, shapes in value.items() if isinstance(value, dict) else ():
        for shape in shapes if isinstance(shapes, list) else ():
            listed = isinstance(shape, list) and all(type(size) is int for size in shape)
            if listed and (name in values or all(size > 0 for size in shape)):
                found.setdefault(name, []).append(tuple(shape))
    return found


def _diagnosis(file: Path, value: object) -> list[Diagnosis]:
    try:
        return DIAGNOSIS_LIST(value)
    except Unfit as error:
        raise damaged(file, "diagnosis", value) from error


def _texts(file: Path, key: str, value: object) -> list[str]:
    """Return a list of texts that are all different."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise damaged(file, key, value)
    if len(set(value)) < len(value):
        raise damaged(file, key, value)
    return value


def _pinned(file: Path, fields: Mapping[str, Any]) -> dict[LayerName, str]:
    """Return the pinned layers with their reasons; results of 0.1.0 have none."""
    rows = fields.get("pinned", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise damaged(file, "pinned", rows)
    names = _texts(file, "pinned", [row.get("layer") for row in rows])
    reasons = [row.get("reason") for row in rows]
    if not all(isinstance(reason, str) for reason in reasons):
        raise damaged(file, "pinned", rows)
    return dict(zip(map(LayerName, names), reasons, strict=True))


def _rungs(
    file: Path, fields: Mapping[str, Any], model: Model
) -> list[tuple[HighName, list[LayerName]]]:
    """Return the rungs above the lowest, the highest first; a run of one pair has one."""
    high = _chosen(file, "high", fields, HIGH_NAMES)
    rows = fields.get("rungs") or [{"precision": high, "layers": []}]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise damaged(file, "rungs", rows)
    above = [row for row in rows if row.get("precision") != fields.get("low")]
    if not above:
        raise damaged(file, "rungs", rows)
    found = []
    for row in above:
        names = _texts(file, "rungs", row.get("layers"))
        found.append((_chosen(file, "precision", row, HIGH_NAMES), list(map(LayerName, names))))
    _check_names(file, [name for _, names in found for name in names], model)
    return found


def _pair(file: Path, low: object, high: HighName) -> Pair:
    if low not in LOW_NAMES or low == high:
        raise damaged(file, "low", low)
    return Pair(low=low, high=high)


def _check_names(file: Path, names: Sequence[str], model: Model) -> None:
    known = frozenset(model.table.names)
    seen: set[str] = set()
    for name in names:
        if name not in known or name in seen:
            what = "twice" if name in seen else "which is no candidate of the model"
            raise RunFolderError(
                f"{file} names the layer {quoted(name)}, {what}",
                "list the layers with `precision-bisect layers`",
            )
        seen.add(name)


def _chosen(file: Path, key: str, fields: Mapping[str, Any], allowed: Sequence[str]) -> Any:
    value = fields.get(key)
    if value not in allowed:
        raise damaged(file, key, value)
    return value
