"""How the plans of a run did on a machine without this tool: a table, and `target.json`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from precision_bisect.errors import ExitCode, counted, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import MIXED_MODEL
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure, Honour, LayerHonour

UNKNOWN = "unknown"
"""What stands for a version or a GPU that no log tells."""
ANSWER, FP32 = "answer", "fp32"
"""The point that is the model itself: the control."""
_TITLES = ("", "holds", "error", "latency", "honoured", "engine")
_NOTHING = "-"
_MIB = 2**20


class TargetStatus(StrEnum):
    """What an answer is worth on a target; the values are those of `target.json`.

    NOT_PRECISION: FP32 fails there, too. NO_FASTER and SLOWER hold, and gain nothing against FP32.
    """

    HOLDS = "holds"
    NO_FASTER = "no_faster"
    SLOWER = "slower"
    NOT_JUDGED_WHOLE = "not_judged_whole"
    NOT_JUDGED = "not_judged"
    FAILS = "fails"
    NOT_PRECISION = "not_precision"


_HELD = (TargetStatus.HOLDS, TargetStatus.NO_FASTER, TargetStatus.SLOWER)


class BuildTrouble(StrEnum):
    """Why trtexec made no engine; the values are those of `target.json`."""

    NOT_OBEYED = "not_obeyed"
    NO_KERNEL = "no_kernel"
    UNKNOWN_OPTION = "unknown_option"
    NOT_PARSED = "not_parsed"
    OUT_OF_MEMORY = "out_of_memory"
    CUT_OFF = "cut_off"
    OTHER = "other"


_TROUBLE_WORDS = {
    BuildTrouble.NOT_OBEYED: "no kernel obeys the precisions asked for",
    BuildTrouble.NO_KERNEL: "no kernel is found",
    BuildTrouble.UNKNOWN_OPTION: "that version lacks an option",
    BuildTrouble.NOT_PARSED: "that version does not take the model",
    BuildTrouble.OUT_OF_MEMORY: "memory is full there",
    BuildTrouble.CUT_OFF: "the log breaks off, as where something kills the build",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBuild:
    """Why there is no engine, and what the log itself says of it, on one line."""

    trouble: BuildTrouble
    text: str

    def to_text(self) -> str:
        kind = _TROUBLE_WORDS.get(self.trouble)
        return ": ".join(part for part in (kind, self.text) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOnTarget:
    """What came back of one plan, and the verdict on it.

    `kept` counts its layers; of `samples` so many have outputs that could be read. `passed` and
    `error` are over these, as the run judges; None where there is none. `latency_ms` is the
    median of trtexec's compute times, `latency_spread_ms` what the middle half of them spans,
    `latency_batch` None where it is the samples' own. `layers` are the kept ones as the engine
    shows them. `failed` says why there is no engine, as far as a log came back.
    `lacks` says in sentences what is missing or damaged.
    """

    point: str
    kept: Count
    samples: Count
    passed: bool | None = None
    error: Figure | None = None
    message: str = ""
    latency_ms: Figure | None = None
    latency_spread_ms: Figure | None = None
    latency_batch: Count | None = None
    engine_bytes: Count | None = None
    layers: Sequence[LayerHonour] = ()
    failed: FailedBuild | None = None
    lacks: Sequence[str] = ()

    def holds(self, samples: int) -> bool:
        """Whether it passes on so many samples, which are all."""
        return self.passed is True and self.samples >= samples

    def slower_than(self, other: "PointOnTarget") -> bool:
        """Whether it takes longer, by more than the times of either span."""
        if self.latency_ms is None or other.latency_ms is None:
            return False
        spread = max(self.latency_spread_ms or 0.0, other.latency_spread_ms or 0.0)
        return self.latency_ms > other.latency_ms + spread

    def cells(self, samples: int) -> tuple[str, ...]:
        """Return what a table says of it, a text per column."""
        holds = _NOTHING if self.passed is None else "yes" if self.passed else "NO"
        if self.passed is not None and self.samples < samples:
            holds += f", on {self.samples} of {samples}"
        counts = Counter(entry.honoured for entry in self.layers)
        words = {Honour.DEMOTED: "DEMOTED", Honour.NOT_OBSERVABLE: "not observable"}
        others = [f"{counts[honour]} {word}" for honour, word in words.items() if counts[honour]]
        size = None if self.engine_bytes is None else self.engine_bytes / _MIB
        batch = "" if self.latency_batch is None else f" at batch {self.latency_batch}"
        return (
            self.point,
            holds,
            _NOTHING if self.error is None else f"{self.error:.3g}",
            _NOTHING if self.latency_ms is None else f"{self.latency_ms:.3g} ms{batch}",
            ", ".join([str(counts[Honour.HONOURED]), *others]) if self.layers else _NOTHING,
            _NOTHING if size is None else f"{size:.3g} MiB",
        )

    def line(self, samples: int) -> str:
        """Return the cells behind the name on one line, as far as there are any."""
        named = zip(_TITLES[1:], self.cells(samples)[1:], strict=True)
        return ", ".join(f"{title} {text}" for title, text in named if text != _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTarget:
    """What came back of a run's plans: the contents of `target.json`, version 1.

    `kept` has the layers of the answer that was judged; `status` follows from the points.
    `versions` are of trtexec and its GPU, as its logs tell them.
    """

    schema: Literal[1] = 1
    status: TargetStatus = field(init=False)
    samples: Count
    kept: Sequence[str]
    points: Sequence[PointOnTarget]
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", self._status())

    @property
    def answer(self) -> PointOnTarget | None:
        return self._point(ANSWER)

    @property
    def exit_code(self) -> ExitCode:
        """0 only where the answer passes on all samples, and FP32 on those that came back."""
        return ExitCode.OK if self.status in _HELD else ExitCode.NO_PLAN

    def _point(self, name: str) -> PointOnTarget | None:
        return next((point for point in self.points if point.point == name), None)

    def _status(self) -> TargetStatus:
        answer, control = self.answer, self._point(FP32)
        # If FP32 itself fails there, what the answer does says nothing of its precision.
        if control is not None and control.passed is False:
            return TargetStatus.NOT_PRECISION
        if answer is None or answer.passed is None:
            return TargetStatus.NOT_JUDGED
        if not answer.passed:
            return TargetStatus.FAILS
        if not answer.holds(self.samples):
            return TargetStatus.NOT_JUDGED_WHOLE
        if control is None or control.latency_ms is None or answer.latency_ms is None:
            return TargetStatus.HOLDS
        if answer.slower_than(control):
            return TargetStatus.SLOWER
        return TargetStatus.HOLDS if control.slower_than(answer) else TargetStatus.NO_FASTER

    @property
    def fastest(self) -> PointOnTarget | None:
        """The fastest plan that holds, where it is clearly faster than the answer, else None."""
        answer = self.answer
        rivals = [
            point
            for point in self.points
            if answer and point.holds(self.samples) and answer.slower_than(point)
        ]
        return min(rivals, key=lambda point: point.latency_ms or 0.0, default=None)

    def _deploy(self) -> str:
        """Return what to deploy instead of the answer, "" where nothing is faster."""
        fastest = self.fastest
        if fastest is None:
            return ""
        if fastest.point == FP32:
            return "; deploy the model itself"
        took = f"{fastest.latency_ms or 0:.3g} ms"
        return f"; {fastest.point} holds there in {took}: deploy {fastest.point}/{MIXED_MODEL}"

    def _without_control(self) -> str:
        control = self._point(FP32)
        if control is None or control.passed is None:
            return "; FP32 has not come back to compare with"
        return "" if control.holds(self.samples) else "; FP32 was judged on fewer samples"

    @property
    def verdict(self) -> str:
        """What the answer is worth on the target, in one line."""
        answer, control = self.answer, self._point(FP32)
        every = counted(self.samples, "sample")
        took = ""
        if answer is not None and control is not None:
            took = f"{control.latency_ms or 0:.3g} ms, the answer {answer.latency_ms or 0:.3g} ms"
        within = f"the answer is within the limits on the target, {every}"
        match self.status:
            case TargetStatus.NOT_PRECISION:
                error = control.error if control is not None else None
                off = "" if error is None else f" (FP32 is off by {error:.3g})"
                return (
                    f"Not a precision problem: the comparison itself fails on the target{off}; "
                    "see that it gets the same inputs, and builds the model itself rightly"
                )
            case TargetStatus.NOT_JUDGED:
                return "Not judged: no outputs of the answer have come back"
            case TargetStatus.FAILS:
                return "Fails: the answer is not within the limits on the target"
            case TargetStatus.NOT_JUDGED_WHOLE:
                judged = answer.samples if answer is not None else 0
                return f"Not judged whole: it holds on {judged} of {every}"
            case TargetStatus.SLOWER:
                return f"Holds, but FP32 is faster there: {took}, {every}{self._deploy()}"
            case TargetStatus.NO_FASTER:
                return (
                    f"Holds: {within}; but it is no faster than FP32 there: {took}{self._deploy()}"
                )
            case TargetStatus.HOLDS:
                return f"Holds: {within}{self._without_control()}{self._deploy()}"

    def to_json(self) -> str:
        return plain_json.dumps(self, indent=2) + "\n"

    def to_text(self) -> str:
        """Return the verdict, a table with a line per plan, and what lacks."""
        rows = [_TITLES, *(point.cells(self.samples) for point in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.verdict]
        known = [(fact, value) for fact, value in self.versions.items() if value != UNKNOWN]
        if facts := ", ".join(f"{fact} {value}" for fact, value in known):
            lines.append(f"  {printable(facts)}")
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
        control = self._point(FP32)
        for point in self.points:
            if control is not None and point.slower_than(control) and point.point != ANSWER:
                lines.append(f"  {point.point}: FP32 is faster there")
            lines += [f"  {point.point}: {printable(lack)}" for lack in point.lacks]
            lines += [
                f"  {point.point}: {printable(entry.layer)} is DEMOTED: "
                f"{printable(entry.evidence)}"
                for entry in point.layers
                if entry.honoured is Honour.DEMOTED
            ]
        return "".join(f"{line}\n" for line in lines)
