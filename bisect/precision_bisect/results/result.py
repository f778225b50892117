"""What a run comes to: the fields of `result.json`, version 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from precision_bisect.certificate.record import Certificate
from precision_bisect.errors import ExitCode, printable
from precision_bisect.plugins import REPORTS, load
from precision_bisect.results.deployment import Deployment
from precision_bisect.results.endings import Status
from precision_bisect.run_folder import plain_json
from precision_bisect.speed.report import SpeedReport
from precision_bisect.trial import LatencyMethod, LayerHonour, Stability

SCHEMA = 1
POINTS = ("all_low", "culprits", "answer", "margin", "")
"""What points of the curve are called; "" is one between."""
WITHOUT_IT = "; without it: error "
"""What follows in the evidence of a layer that was dropped alone: the error without it."""
_EXIT_CODES = {
    Status.FOUND: ExitCode.OK,
    Status.NOTHING_TO_KEEP: ExitCode.OK,
    Status.NOT_PRECISION: ExitCode.NO_PLAN,
    Status.INFEASIBLE: ExitCode.NO_PLAN,
    Status.BUDGET_EXHAUSTED: ExitCode.BUDGET,
    Status.INTERRUPTED: ExitCode.INTERRUPTED,
    Status.ABORTED: ExitCode.BUDGET,
    Status.STOPPED: ExitCode.BUDGET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a kept layer needs the precision: one cause, with its evidence in one sentence."""

    layer: str
    cause: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A layer that breaks the low type: the error when it alone of the culprits runs low.

    `error_with` is that of keeping all culprits. Both are on the tolerance's scale; `cause` is one
    line, "" where it is not known.
    """

    layer: str
    error_without: float | None
    error_with: float | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A plan that was evaluated: how many layers it keeps and which, and its error over copies.

    `point` is one of `POINTS`; `kept` are in network order.
    """

    kept_count: int
    error_median: float | None
    error_max: float | None
    latency_ms: float | None
    point: str
    kept: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Something to change instead of keeping layers, from `diagnosis.json`.

    `passed` tells that the run has tried it, and that the outputs were within the tolerance.
    `layers` are the kept ones that it is for.
    """

    id: str
    title: str
    evidence: str
    passed: bool
    layers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What computes in one type: `count` layers, those among them that the search chose `layers`.

    The rest of the count has no form in the next lower type. `layers` is None for the lowest type,
    in which everything computes that is not listed.
    """

    precision: str
    layers: Sequence[str] | None
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return one entry of `rungs`."""
        layers = None if self.layers is None else list(self.layers)
        return {"precision": self.precision, "layers": layers, "count": self.count}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The answer of a run, field by field as in `result.json` (docs/result.md explains each).

    `error` and `tolerance` are on the same scale. With several limits `tolerance` is a mapping per
    output and `error` a multiple of the limits. `export_point` is what the exports hold, None
    where none is written. `inputs` say whether samples were made up, None where a file does not.
    `message` and `out` are not part of the file.
    """

    status: Status
    backend: str
    emulated: bool
    low: str
    high: str
    tolerance: float | Mapping[str, Any] | None
    error: float | None
    noise_floor: float | None
    stability: Stability | None = None
    layers_total: int
    candidates: int
    kept: Sequence[str]
    rungs: Sequence[Rung] = ()
    export_point: str | None = None
    layer_precisions: str | None
    layer_precisions_reason: str | None
    certificate: Certificate
    culprits: Sequence[Culprit] = ()
    curve: Sequence[CurvePoint] = ()
    trials: int
    builds: int
    evaluations: int
    wall_s: float
    latency_ms: Mapping[str, float | None] | None
    latency_method: LatencyMethod | None = None
    speed: SpeedReport | None = None
    front: Sequence[Mapping[str, Any]] = ()
    honoured: bool | None
    honoured_layers: Sequence[LayerHonour] = ()
    pinned: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    non_monotone: Sequence[Mapping[str, Any]] = ()
    unresolved: Mapping[str, int] = field(default_factory=dict)
    deployment: Deployment | None = None
    diagnosis: Sequence[Diagnosis]
    advice: Sequence[Advised] = ()
    fingerprint: Mapping[str, Any]
    inputs: Mapping[str, Any] | None = None
    schema: int = SCHEMA
    message: str = ""
    out: Path | None = None

    @property
    def kept_fraction(self) -> float:
        """The share of the candidates that is kept, 0 to 1."""
        return len(self.kept) / self.candidates if self.candidates else 0.0

    @property
    def gains_nothing(self) -> bool:
        """Whether the plan is the one that was there before the search: every candidate high."""
        highest = self.rungs[0].layers if self.rungs else self.kept
        return len(highest or ()) == self.candidates > 0

    @property
    def rest(self) -> str:
        """What the layers do that are not kept: run low, or may."""
        return f"{runs(self.fingerprint)} in {self.low.upper()}"

    @property
    def exit_code(self) -> ExitCode:
        """What a command that ends with this result returns."""
        return _EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `result.json`; infinite figures become the string "inf"."""
        skipped = {"message", "out", "certificate", "diagnosis"}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        plain["status"] = self.status.value
        plain["kept"] = list(self.kept)
        plain["kept_fraction"] = self.kept_fraction
        plain["rungs"] = [rung.to_json() for rung in self.rungs]
        plain["certificate"] = self.certificate.to_json()
        plain["stability"] = None if self.stability is None else asdict(self.stability)
        plain["culprits"] = [asdict(each) for each in self.culprits]
        plain["curve"] = [asdict(each) for each in self.curve]
        plain["advice"] = [asdict(each) for each in self.advice]
        plain["speed"] = None if self.speed is None else self.speed.to_json()
        plain["deployment"] = None if self.deployment is None else self.deployment.to_json()
        plain["front"] = list(self.front)
        plain["non_monotone"] = list(self.non_monotone)
        plain["unresolved"] = dict(self.unresolved)
        plain["diagnosis"] = [
            {"layer": d.layer, "cause": d.cause, "evidence": d.evidence} for d in self.diagnosis
        ]
        plain["honoured_layers"] = [
            {"layer": h.layer, "honoured": h.honour.value, "evidence": h.evidence}
            for h in self.honoured_layers
        ]
        plain["pinned"] = [{"layer": k, "reason": v} for k, v in self.pinned.items()]
        plain["notes"] = list(self.notes)
        return {key: _finite(plain[key]) for key in KEYS}

    def to_text(self) -> str:
        """Return `result.json` as text."""
        return plain_json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        """Return the answer in one line."""
        said = self.status.value.replace("_", " ")
        if self.rungs:
            said += f": {len(self.kept)} of {self.candidates} layers stay {self.high.upper()}"
        elif self.message:
            said += f": {printable(self.message)}"
        if self.error is not None:
            said += f", error {self.error:.4g}"
        return f"{said}, in {self.out}" if self.out is not None else said

    def __repr__(self) -> str:
        return f"<Result {self}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        html: str = load(REPORTS, "notebook")(self)
        return html


KEYS = (
    "schema",
    "status",
    "backend",
    "emulated",
    "low",
    "high",
    "tolerance",
    "error",
    "noise_floor",
    "stability",
    "layers_total",
    "candidates",
    "kept",
    "kept_fraction",
    "rungs",
    "export_point",
    "layer_precisions",
    "layer_precisions_reason",
    "certificate",
    "culprits",
    "curve",
    "non_monotone",
    "trials",
    "unresolved",
    "builds",
    "evaluations",
    "wall_s",
    "latency_ms",
    "latency_method",
    "speed",
    "front",
    "honoured",
    "honoured_layers",
    "pinned",
    "notes",
    "deployment",
    "diagnosis",
    "advice",
    "inputs",
    "fingerprint",
)
"""The keys of `result.json`, version 1, in order."""


def runs(fingerprint: Mapping[str, Any]) -> str:
    """Return what low layers do: weakly typed, TensorRT takes FP32 for them where it is faster."""
    return "may run" if fingerprint.get("versions", {}).get("typing") == "weak" else "runs"


def _finite(value: Any) -> Any:
    """Return the value with figures that are not finite as text, which JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
