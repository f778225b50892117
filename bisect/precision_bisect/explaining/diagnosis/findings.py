"""The result of a diagnosis: `diagnosis.json`, version 1, declared once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from precision_bisect.errors import RunFolderError, counted
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.advised import Advised, Tried
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.runfolder import DIAGNOSIS
from precision_bisect.runs.typed_json import Count, Text, read_typed
from precision_bisect.trial import Figure


class Sign:
    """One thing that is known of a layer: its `figures` by name, and the words to show them in."""

    def __init__(self, words: str, **figures: Any) -> None:
        self.words, self.figures = words, figures

    def __str__(self) -> str:
        return self.words.format(**self.figures)


class Signs(Text):
    """What shows a cause, that first, and what else is known of the layer; a text in files."""

    def __init__(self, *signs: Sign | str) -> None:
        self.signs = signs

    def __str__(self) -> str:
        return "; ".join(map(str, self.signs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signs) and str(self) == str(other)

    def also(self, *signs: Sign) -> "Signs":
        """Return these signs with further ones behind them."""
        return Signs(*self.signs, *signs)


MOST_LISTED = 3
"""Layers that a sentence names."""


Way: TypeAlias = Annotated[Sequence[str], Meta(min_length=1)]
"""Names along a way, which has a beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of values by floor(log2|x|), the first for `lowest_exponent`; zeros are not counted.

    `counts` has one list each for "inputs", "outputs" and "weights". If it is `scaled`, values are
    counted in multiples of their scale, as an 8-bit type holds them.
    """

    lowest_exponent: int
    scaled: bool = False
    counts: Mapping[str, Sequence[Count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurt:
    """Which output of the model the layer hurts most when it runs low: how much, and the way.

    `error` is the largest difference as a share of the output's largest value, infinity where NaN
    or Inf come out. `path` has the nodes from this one to the output: the way of the error if it
    was followed, else a shortest way. `errors` has the error of each node's output while the layer
    alone runs low: root mean square, relative to the values, None for what is not FP32. It is
    empty if the error was not followed.
    """

    output: str
    error: Figure
    path: Way
    errors: Sequence[Figure | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why one layer needs the high type: a cause, its evidence, and the figures.

    `name` is that of the layer, too, `operator` its ONNX operator, `module` the part of the source
    that it belongs to. `kept` is False for a borderline layer. `low` is the type that it cannot
    have, `high` the one that it has instead. `figures` differ with the cause. `advice` has the ids
    of what would help.
    """

    layer: str
    name: str = field(init=False)
    operator: str = ""
    module: str = ""
    kept: bool
    low: str
    high: str
    cause: Cause
    evidence: Signs
    figures: Mapping[str, Any] = field(default_factory=dict)
    hurts: Hurt | None = None
    histogram: Histogram | None = None
    advice: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.layer)

    @property
    def short(self) -> Diagnosis:
        """What `result.json` has of it: magnitudes only where they are the cause, in 3 digits."""
        keys = () if self.cause is Cause.ROUNDING else ("largest", "largest_sum")
        largest = max((self.figures.get(key) or 0.0 for key in keys), default=0.0)
        return Diagnosis(
            layer=self.layer,
            operator=self.operator,
            cause=self.cause,
            evidence=str(self.evidence),
            largest=float(f"{largest:.3g}") or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Where NaN or Inf first appears with every layer low, and how it reaches an output.

    `layer` has it in its outputs and in none of its inputs. `path` ends where values are finite
    again, or with the last layer before the output.
    """

    layer: str
    born: str
    path: Way
    output: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """An operator that chooses rows of `outputs`, and otherwise where layers run `low`.

    It does so in `samples` of `of_samples`. In `sample` what it tells of its choice has this
    `shape` in place of the one that was `expected`, or so many `differing` of its `elements`.
    `reads` are the computed FP32 tensors that it chooses by.
    """

    layer: str = ""
    operator: str = ""
    low: str = ""
    reads: Sequence[str] = ()
    outputs: Sequence[str] = ()
    samples: Count = 0
    of_samples: Count = 0
    sample: Count = 0
    shape: Sequence[Count] = ()
    expected: Sequence[Count] = ()
    differing: Count = 0
    elements: Count = 0

    @property
    def words(self) -> str:
        """What it chooses, and how that differs, as a sentence without its end."""
        what, verb = ("what stands in", "is") if len(self.outputs) == 1 else ("rows of", "are")
        named = self.layer.endswith(self.operator)
        by = self.layer if named else f"{self.operator} ({self.layer})"
        return (
            f"{what} {', '.join(map(repr, self.outputs))} {verb} chosen by {by}, in "
            f"{self.low.upper()} otherwise in {self.samples} of "
            f"{counted(self.of_samples, 'sample')} ({self._differs})"
        )

    @property
    def _differs(self) -> str:
        if list(self.shape) != list(self.expected):
            return f"shape {list(self.shape)}, not {list(self.expected)}"
        verb = "differs" if self.elements == 1 else "differ"
        return f"{self.differing} of {counted(self.elements, 'choice')} {verb}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change, for the layers named, with one sentence of evidence.

    `tried` is what came of it, None where it was not tried.
    """

    id: str
    title: str
    text: str
    layers: Sequence[str]
    evidence: str
    tried: Tried | None = None

    @property
    def holds(self) -> bool:
        """Whether it was tried, and helps: what holds is no merit where it holds without, too."""
        return self.tried is not None and self.tried.helps

    def advised(self, kept: Collection[str]) -> Advised:
        """Return what the result tells of it, beside the `kept` layers alone."""
        return Advised(
            id=self.id,
            title=self.title,
            evidence=self.evidence,
            passed=self.holds,
            layers=[name for name in self.layers if name in kept],
            tried=self.tried,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A diagnosis: layers in network order, births in network order, advice most helpful first.

    `selections` tell what chooses rows of the outputs otherwise with every layer low that stays
    finite. It is not `answered` if no plan of the run holds. `stopped` is what ONNX Runtime says
    where it cannot run with every layer low, "" where it can. Nobody has looked into `unexplained`
    kept layers, as in a run that ended early.
    """

    schema: Literal[1] = 1
    low: str
    layers: Sequence[Finding] = ()
    spread: Sequence[Birth] = ()
    advice: Sequence[Advice] = ()
    selections: Sequence[Selection] = ()
    answered: bool = True
    stopped: str = ""
    unexplained: Count = 0

    @property
    def kept(self) -> Sequence[Diagnosis]:
        """The causes of the kept layers, as `result.json` has them."""
        return [finding.short for finding in self.layers if finding.kept]

    def of_answer(self, kept: Sequence[str], *, answered: bool) -> "Findings":
        """Return the findings of an answer, which tell how many of its `kept` layers they lack."""
        names = {finding.layer for finding in self.layers}
        missing = len([name for name in kept if name not in names])
        return replace(self, answered=answered, unexplained=missing)

    def to_text(self) -> str:
        """Return `diagnosis.json` as text; figures that are not finite become texts."""
        return plain_json.dumps(self, indent=1) + "\n"


def read_diagnosis(folder: Path) -> Findings:
    """Return a run's `diagnosis.json`.

    Raises RunFolderError where there is none, or none that this version has written.
    """
    try:
        return read_typed(Findings, folder / DIAGNOSIS)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{folder} has no readable {DIAGNOSIS}",
            "a run writes it when it ends; give the model to explain it without a run",
        ) from error
