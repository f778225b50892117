"""The answer of a run, read back from its folder: untrusted input, checked value by value.

`finished` asks less of a result, and more of how it fits a model.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from precision_bisect.certificate.record import Certificate, How, Need
from precision_bisect.errors import RunFolderError, printable
from precision_bisect.options import CERTIFY
from precision_bisect.precisions import HIGH_NAMES, LOW_NAMES
from precision_bisect.results.deployment import (
    OUTCOMES,
    ByDefaults,
    Deployment,
    Recheck,
    SessionOptions,
)
from precision_bisect.results.endings import Status
from precision_bisect.results.result import (
    POINTS,
    SCHEMA,
    Advised,
    Culprit,
    CurvePoint,
    Diagnosis,
    Result,
    Rung,
)
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.json_values import (
    Reader,
    Unfit,
    anything,
    chosen,
    count,
    flag,
    many,
    maybe,
    number,
    record,
    row,
    table,
    text,
)
from precision_bisect.run_folder.runfolder import RESULT, STATUS
from precision_bisect.speed.report import SpeedReport
from precision_bisect.trial import LATENCY_METHODS, Honour, LayerHonour, Stability

_SHOWN = 60
"""Longest value that an error quotes, in characters."""
_HINT = "name a run folder, or the result.json in one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The result of a run, with the path of the file, and of the model as the run was told it.

    `model` is MODEL.onnx where the folder does not tell. `outdated` tells that the run has gone on
    since: the result is of an earlier ending.
    """

    result: Result
    path: Path
    model: Path
    outdated: bool

    @property
    def answered(self) -> bool:
        """Whether the run has an answer, the best so far included."""
        whole = self.result.status in (Status.FOUND, Status.NOTHING_TO_KEEP)
        return whole or bool(self.result.kept)


def read_saved(path: Path) -> Saved:
    """Read a `result.json`, or the one in a run folder, whatever the model was.

    Raises RunFolderError for a file that is missing or damaged, or from another version.
    """
    file = path / RESULT if os.path.isdir(path) else path  # noqa: PTH112 - never raises
    fields = fields_of(file, _HINT)
    told = _told(file.parent)
    try:
        result = unpacked(fields)
    except Unfit as unfit:
        raise damaged(file, unfit.where, unfit.value) from unfit
    started = told.get("run")
    name = started.get("model") if isinstance(started, dict) else None
    return Saved(
        result=replace(result, message=str(told.get("message") or ""), out=file.parent),
        path=file,
        model=Path(printable(name) if isinstance(name, str) else "MODEL.onnx"),
        outdated=told.get("state") == "searching",
    )


def unpacked(fields: Mapping[str, Any]) -> Result:
    """Return what a parsed `result.json` says. Raises Unfit for values that no run has written."""
    return _RESULT(fields)


def fields_of(file: Path, hint: str) -> dict[str, Any]:
    """Return what a `result.json` holds. Raises RunFolderError with the hint where it is none."""
    try:
        fields = plain_json.read(file)
    except FileNotFoundError as error:
        raise RunFolderError(f"no finished run: {file} does not exist", hint) from error
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise RunFolderError(f"{file} is not JSON", hint) from error
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        schema = fields.get("schema") if isinstance(fields, dict) else None
        raise RunFolderError(
            f"{file} is no result.json of version {SCHEMA}: its schema is {quoted(schema)}",
            "name the result.json of a run, or run the search again with this version",
        )
    return fields


def damaged(file: Path, key: str, value: object) -> RunFolderError:
    """Return the error for a value that no run has written."""
    return RunFolderError(
        f"{file} is damaged: its {key} is {quoted(value)}",
        "name a result.json that a run has written",
    )


def quoted(value: object) -> str:
    """Return a value as an error shows it."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _told(folder: Path) -> Mapping[str, Any]:
    """Return the last status of the run, {} where it tells nothing: it only adds to the result."""
    try:
        return plain_json.read_object(folder / STATUS)
    except (OSError, ValueError):
        return {}


def _limit(value: Any) -> float:
    """Read a speed limit."""
    found = number(value)
    if not 0 < found < math.inf:
        raise Unfit(value)
    return found


def _honour(value: Any) -> LayerHonour:
    found = row(layer=text, honoured=chosen(*Honour), evidence=text)(value)
    return LayerHonour(
        layer=found["layer"], honour=Honour(found["honoured"]), evidence=found["evidence"]
    )


def _pinned(value: Any) -> dict[str, str]:
    rows = many(row(layer=text, reason=text))(value)
    return {each["layer"]: each["reason"] for each in rows}


def _front(value: Any) -> list[dict[str, Any]]:
    """Read the front, all of it timed or none."""
    found = many(row(**_POINT))(value)
    for each in found:
        measured = ("latency_ms", "spread_ms", "speedup")
        needed = measured if found[0]["latency_ms"] is not None else ("cost",)
        for key in needed:
            if each[key] is None:
                raise Unfit(None, key)
    return found


_POINT: Mapping[str, Reader[Any]] = {
    "kept_count": count,
    "kept": many(text),
    "passed": flag,
    "error": maybe(number),
    **dict.fromkeys(("latency_ms", "spread_ms", "speedup", "cost"), maybe(number)),
}
_OPTIONS: Mapping[str, Reader[Any]] = {
    **dict.fromkeys(("provider_options", "session_config"), table(text)),
    "graph_optimization_level": text,
    "disabled_optimizers": many(text),
}
_DEFAULTS = record(ByDefaults, outcome=chosen(*OUTCOMES), error=maybe(number), options=many(text))
_RECHECK = record(
    Recheck,
    outcome=chosen(*OUTCOMES),
    message=text,
    error=maybe(number),
    library_defaults=maybe(_DEFAULTS),
)


def read_deployment(value: Any) -> Deployment:
    """Read how an answer is deployed. Raises Unfit."""
    rest = row(samples=count, samples_total=count, polygraphy=maybe(text), recheck=maybe(_RECHECK))
    return Deployment(options=record(SessionOptions, **_OPTIONS)(value), **rest(value))


_NEED = record(
    Need,
    layer=text,
    needed=maybe(flag),
    needed_at_limit=maybe(flag),
    error=maybe(number),
    how=maybe(chosen(*get_args(How))),
    more_kept=maybe(count),
    group=maybe(count),
    reason=text,
)
_CERTIFICATE = record(
    Certificate,
    mode=chosen(*CERTIFY),
    minimal=flag,
    checked=many(text),
    unchecked=many(text),
    evidence=many(_NEED),
    assumes=maybe(chosen("monotone")),
    limit=maybe(number),
)
_SPEED = record(
    SpeedReport,
    max_latency_ms=maybe(_limit),
    min_speedup=maybe(_limit),
    latency_ms=maybe(number),
    speedup=maybe(number),
    speedup_spread=maybe(number),
    met=maybe(flag),
    within_spread=maybe(flag),
    found_first=maybe(many(text)),
)
_STABILITY = record(
    Stability,
    copies=count,
    failed=count,
    **dict.fromkeys(("error_median", "error_max", "jitter"), maybe(number)),
)
_CULPRIT = record(
    Culprit,
    layer=text,
    **dict.fromkeys(("error_without", "error_with"), maybe(number)),
    cause=text,
)
_CURVE_POINT = record(
    CurvePoint,
    kept_count=count,
    **dict.fromkeys(("error_median", "error_max", "latency_ms"), maybe(number)),
    point=chosen(*POINTS),
    kept=many(text),
)
CURVE_LIST = many(_CURVE_POINT)
CULPRIT_LIST = many(_CULPRIT)
DIAGNOSIS_LIST = many(record(Diagnosis, layer=text, cause=text, evidence=text))
_VALUES: Mapping[str, Reader[Any]] = {
    "status": lambda value: Status(chosen(*Status)(value)),
    "backend": text,
    "emulated": flag,
    "low": chosen(*LOW_NAMES),
    "high": chosen(*HIGH_NAMES),
    "tolerance": lambda value: value if isinstance(value, dict) else maybe(number)(value),
    **dict.fromkeys(("error", "noise_floor"), maybe(number)),
    **dict.fromkeys(("layers_total", "candidates", "trials"), count),
    **dict.fromkeys(("builds", "evaluations"), count),
    "stability": maybe(_STABILITY),
    "kept": many(text),
    "rungs": many(record(Rung, precision=text, layers=maybe(many(text)), count=count)),
    **dict.fromkeys(("layer_precisions", "layer_precisions_reason"), maybe(text)),
    "export_point": maybe(text),
    "certificate": _CERTIFICATE,
    "culprits": CULPRIT_LIST,
    "curve": CURVE_LIST,
    "non_monotone": many(table(anything)),
    "unresolved": table(count),
    "wall_s": number,
    "latency_ms": maybe(table(maybe(number))),
    "latency_method": maybe(chosen(*LATENCY_METHODS)),
    "speed": maybe(_SPEED),
    "front": _front,
    "honoured": maybe(flag),
    "honoured_layers": many(_honour),
    "pinned": _pinned,
    "notes": many(text),
    "deployment": maybe(read_deployment),
    "diagnosis": DIAGNOSIS_LIST,
    "advice": many(
        record(Advised, id=text, title=text, evidence=text, passed=flag, layers=many(text))
    ),
    "inputs": maybe(row(synthetic=flag, samples=count)),
    "fingerprint": table(anything),
}
_RESULT = record(Result, **_VALUES)
