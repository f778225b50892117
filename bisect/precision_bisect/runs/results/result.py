"""What a run comes to: `result.json`, version 1, declared once for writer, reader and schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from precision_bisect.errors import ExitCode, UsageError, counted, printable
from precision_bisect.layer_table import scope_of
from precision_bisect.plugins import REPORTS, load
from precision_bisect.precisions import HighName, LowName, PrecisionName
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.advised import Advised
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.curve_of_result import CurveSection, NonMonotone, Plot
from precision_bisect.runs.results.deployment import FilesSection, Recheck
from precision_bisect.runs.results.endings import EXIT_CODES, WITHOUT_ANSWER, Status
from precision_bisect.runs.results.file_types import Fp32Search, InterfaceCost
from precision_bisect.runs.results.fused_form import FusedForm
from precision_bisect.runs.results.layer_costs import Costs
from precision_bisect.runs.results.loop_steps import LoopSteps
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.runs.results.module_answer import ModuleAnswer
from precision_bisect.runs.results.other_targets import ElsewhereSection, InnerSection
from precision_bisect.runs.results.speed_report import (
    FrontPoint,
    LatencySection,
    PlanToDeploy,
    SpeedReport,
)
from precision_bisect.runs.results.unseen import Unseen
from precision_bisect.runs.runfolder import MIXED_MODEL
from precision_bisect.runs.typed_json import Count
from precision_bisect.settings.targets import TargetChoice, TargetName
from precision_bisect.trial import Figure, LayerHonour, OutputError, Stability

RESULT_SCHEMA: Literal[1] = 1
HARDLY = 0.9
"""Share of the candidates above which keeping them gains little: only words depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a kept layer needs the precision: one cause, with its evidence in one sentence.

    `operator` is "" in runs of versions that did not tell. `largest` is the largest magnitude that
    the layer reads or computes, None where that is not known.
    """

    layer: str
    operator: str = ""
    cause: Cause
    evidence: str
    largest: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A layer that stays high because it cannot run low, and why."""

    layer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A layer that has its type because the user asked for it; nothing was tried of it."""

    layer: str
    precision: PrecisionName


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What computes in one type: `count` layers, those among them that the search chose `layers`.

    The rest of the count was asked for, or has no form in the next lower type. `layers` is None
    for the lowest type, in which everything computes that is not listed.
    """

    precision: PrecisionName
    layers: Sequence[str] | None
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Whether the inputs were made up, and how many samples there were.

    Samples that are equal, or differ by less than FP16's steps, are one `distinct` one; None in
    runs of versions that did not count them.
    """

    synthetic: bool
    samples: Count
    distinct: Count | None = None

    @property
    def repeated(self) -> bool:
        """Whether some samples are others again."""
        return self.distinct is not None and self.distinct < self.samples


@dataclass(frozen=True, kw_only=True)
class SubjectSection:
    """What was searched, by what, and how that ended; `cut_short` if interrupted after the search.

    With several limits `tolerance` is a mapping per output. `target` is what the emulator
    predicted. `asked` are no candidates. `inputs` is None where a file does not tell. In the place
    of outputs that are `overlooked` zeros would pass: they are smaller than their tolerance.
    """

    schema: Literal[1] = RESULT_SCHEMA
    status: Status
    cut_short: bool = False
    backend: str
    emulated: bool
    target: TargetChoice | None = None
    low: LowName
    high: HighName
    tolerance: Figure | Mapping[str, Any] | None
    layers_total: Count
    candidates: Count
    asked: Sequence[Asked] = ()
    pinned: Sequence[Pinned] = ()
    unknown_to: Sequence[TargetName] = ()
    inputs: Inputs | None = None
    overlooked: Sequence[str] = ()
    fingerprint: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AnswerSection:
    """The plan that a run stands by, and what its trials say of it.

    `error`, on the samples as given, and `error_max`, the largest over samples, copies and
    samples that did not choose, are on the tolerance's scale, a multiple of several limits.
    Without a plan `stability` is that of every layer high. `noise_floor` is None where no build
    was repeated. A `near_miss` passes on the samples that chose it alone.
    """

    error: Figure | None
    error_max: Figure | None = None
    noise_floor: Figure | None
    stability: Stability | None = None
    output_errors: Sequence[OutputError] = ()
    kept: Sequence[str]
    near_miss: bool = False
    rungs: Sequence[Rung] = ()
    certificate: Certificate
    non_monotone: Sequence[NonMonotone] = ()
    honoured: bool | None
    honoured_layers: Sequence[LayerHonour] = ()


@dataclass(frozen=True, kw_only=True)
class EffortSection:
    """What a run has cost.

    `unresolved` counts trials without a verdict, by their status; `unresolved_why` is what the
    last of each says.
    """

    trials: Count
    unresolved: Mapping[str, Count] = field(default_factory=dict)
    unresolved_why: Mapping[str, str] = field(default_factory=dict)
    builds: Count
    evaluations: Count
    wall_s: Figure


# The file has the sections in the order of dataclasses: those of the last base come first.
@dataclass(frozen=True, kw_only=True, repr=False)
class Result(
    EffortSection,
    FilesSection,
    InnerSection,
    ElsewhereSection,
    CurveSection,
    LatencySection,
    AnswerSection,
    SubjectSection,
):
    """The answer of a run in sections, each written where its figures come from.

    docs/result.md explains each field. `promises_of` names the plan of which `unseen`, what it
    comes to elsewhere, and what no sample feels inside tell. `deploy` is the fastest plan that
    holds, of the file or its `fused` form; where `fp32_wins`, the given file is deployed.
    `modules` are the kept layers', `by_modules` is the answer as whole ones. The file has no
    `message` and `out`.
    """

    promises_of: Literal["fewest", "deploy"] = "fewest"
    unseen: Unseen | None = None
    fp32_form: Fp32Search | None = None
    interface: InterfaceCost | None = None
    low_share: LowShare | None = None
    loop: LoopSteps | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    by_modules: ModuleAnswer | None = None
    deploy: PlanToDeploy | None = None
    fp32_wins: bool = field(init=False, default=False)
    fused: FusedForm | None = None
    kept_fraction: Annotated[float, Meta(ge=0, le=1)] = field(init=False)
    costs: Costs | None = None
    speed: SpeedReport | None = None
    front: Sequence[FrontPoint] = ()
    notes: Sequence[str] = ()
    diagnosis: Sequence[Diagnosis]
    advice: Sequence[Advised] = ()
    message: str = ""
    out: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_fraction", len(self.kept) / max(self.candidates, 1))
        if self.deploy is not None and self.high == "fp32":
            wins = self.deploy.loses_to_fp32(self.tf32, smallest=self.smallest)
            object.__setattr__(self, "fp32_wins", wins)

    def module_of(self, layer: str) -> str:
        """Return the module of a kept layer, the scope of its name where the model tells none."""
        return self.modules.get(layer, scope_of(layer))

    @property
    def precisions(self) -> Mapping[str, PrecisionName]:
        """The type of each kept layer, in network order."""
        types = {name: rung.precision for rung in self.rungs for name in rung.layers or ()}
        return {name: types.get(name, self.high) for name in self.kept}

    @property
    def causes(self) -> Mapping[str, Diagnosis]:
        """Why layers need the precision, by their names, as far as the run has found it out."""
        return {diagnosis.layer: diagnosis for diagnosis in self.diagnosis}

    @property
    def smallest(self) -> bool:
        """Whether the plan to deploy was chosen by its weights, not by its time."""
        return self.options.get("objective") == "smallest"

    @property
    def deploys_fewest(self) -> bool:
        """Whether the plan to deploy is the answer, as where no other was looked for."""
        plan = self.deploy
        return plan is None or ({*plan.kept} == {*self.kept} and not plan.fused)

    @property
    def to_deploy(self) -> str:
        """What to deploy in few words, "" where no plan was looked for."""
        if self.deploy is None:
            return ""
        return self.deploy.words(self.low, self.high, fp32_wins=self.fp32_wins)

    @property
    def deploys_fused(self) -> bool:
        """Whether the plan to deploy is of the model with its norms put together."""
        return self.deploy is not None and self.deploy.fused

    @property
    def limit(self) -> float | None:
        """The limit on the scale of the errors; several limits make them multiples of 1."""
        return 1.0 if isinstance(self.tolerance, Mapping) else self.tolerance

    @property
    def error_range(self) -> str:
        """The error on the samples as given, and how far it goes elsewhere; "" without one."""
        if self.error is None:
            return ""
        least, most = f"{self.error:.4g}", f"{self.error_max or self.error:.4g}"
        return least if least == most else f"{least} to {most}"

    @property
    def unanswered(self) -> bool:
        """Whether the run ended before there was a plan that runs a layer low."""
        unfinished = self.status.cut_off or self.status is Status.STOPPED
        return unfinished and (not self.rungs or self.gains_nothing)

    @property
    def answered(self) -> bool:
        """Whether the run stands by a plan, the best so far and the culprits alone included."""
        return self.status not in WITHOUT_ANSWER and not self.unanswered

    @property
    def gains_little(self) -> bool:
        """Whether hardly a layer runs low, so that the model has to change first."""
        return len(self.kept) > HARDLY * self.candidates

    @property
    def staying(self) -> str:
        """How many layers stay high, by the search and by order."""
        stay = "stays" if len(self.kept) == 1 else "stay"
        of = counted(self.candidates, "layer")
        order_count = sum(order.precision != self.low for order in self.asked)
        beside = f" beside {order_count} asked for" if order_count else ""
        return f"{len(self.kept)} of {of} {stay} {self.high.upper()}{beside}"

    @property
    def gains_nothing(self) -> bool:
        """Whether the plan is the one that was there before the search: every candidate high."""
        highest = self.rungs[0].layers if self.rungs else self.kept
        return len(highest or ()) == self.candidates > 0

    @property
    def not_passed(self) -> frozenset[TargetName]:
        """The targets on which the answer is known to fail, or is not known to pass."""
        outcomes = (outcome for outcome in self.other_targets if not outcome.passed)
        return frozenset(target for outcome in outcomes for target in outcome.targets)

    @property
    def unusable(self) -> frozenset[TargetName]:
        """The targets that have not passed, and those that lack operators of the model."""
        return self.not_passed.union(self.unknown_to)

    @property
    def rechecked(self) -> Recheck | None:
        """What the last check says of the exported model."""
        return self.deployment.recheck if self.deployment else None

    @property
    def refuted(self) -> Recheck | None:
        """What the last check says of an exported model that must not be deployed."""
        recheck = self.rechecked
        return recheck if recheck is not None and recheck.refutes else None

    @property
    def exit_code(self) -> ExitCode:
        """What a command that ends with this result returns."""
        ended = Status.INTERRUPTED if self.cut_short else self.status
        return ExitCode.BAD_EXPORT if self.refuted else EXIT_CODES[ended]

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `result.json`; infinite figures become the string "inf"."""
        return {key: plain_json.plain(getattr(self, key)) for key in KEYS}

    def to_text(self) -> str:
        """Return `result.json` as text."""
        return plain_json.dumps(self.to_json(), indent=2) + "\n"

    def __str__(self) -> str:
        """Return the answer in one line."""
        text = self.status.value.replace("_", " ")
        if self.rungs:
            text += f": {self.staying}"
        elif self.message:
            text += f": {printable(self.message)}"
        if self.error is not None:
            text += f", error {self.error_range}"
        if self.deploy is not None:
            text += f", deploy {self.to_deploy}"
        if self.refuted is not None:
            text = f"{MIXED_MODEL} must not be used: {printable(self.refuted.message)}; {text}"
        if self.inputs is not None and self.inputs.synthetic:
            text += ", on made-up inputs"
        return f"{text}, in {self.out}" if self.out is not None else text

    def __repr__(self) -> str:
        return f"<Result {self}>"

    def _repr_html_(self) -> str:
        html: str = load(REPORTS, "notebook")(self)
        return html

    @property
    def in_tf32(self) -> bool:
        """Whether FP32 products were searched in TF32."""
        versions = self.fingerprint.get("versions", {})
        return "on" in (self.fingerprint.get("tf32"), versions.get("tf32"))

    def plot(self) -> Plot:
        """Return the curve as notebooks draw it: the error by the number of kept layers.

        Raises UsageError where there is none: of ladders, and of checks without figures.
        """
        if svg := load(REPORTS, "notebook")(self, curve_alone=True):
            return Plot(svg)
        raise UsageError(
            "the run has no curve",
            "it has one where layers stay high, of one low type, by a check with figures",
        )


def recorded(*sections: object) -> dict[str, Any]:
    """Return the fields of sections by name; what an object knows beside its section is not."""
    return {
        entry.name: getattr(section, entry.name)
        for section in sections
        for kind in Result.__bases__
        if isinstance(section, kind)
        for entry in fields(kind)
    }


KEYS = tuple(entry.name for entry in fields(Result) if entry.name not in ("message", "out"))
"""The keys of `result.json`, version 1, in order."""
