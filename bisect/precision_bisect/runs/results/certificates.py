"""What is proven of an answer, layer by layer: a part of `result.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from precision_bisect.options import Certify
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure, TrialStatus

How: TypeAlias = Literal["dropped", "predicted"]
FailsOn: TypeAlias = Literal["samples", "copies"]


class Uncertified(StrEnum):
    """Why no layer of an answer was tried for its certificate.

    MODULES: whole modules were.
    SPREAD: luck decides which layers are kept, or the answer had to be widened. CULPRITS: it is
    the culprits alone, no answer of a search. ASKED: as `--certify none` has it.
    """

    SPREAD = "rounding is spread"
    CULPRITS = "--culprits-only"
    ASKED = "--certify none"
    MODULES = "--by module"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is known of one kept layer.

    `needed` is True if a failing trial shows it, False if the plan passed without the layer, else
    None. `needed_at_limit` says the same for the limit that the search stayed below, None where
    that is the tolerance. `how` is `dropped` where the plan without this layer alone was tried,
    `predicted` where a forecast stands for that trial; `error` is the trial's, or forecast. Where
    a trial failed, it `fails_on` the samples as given, or on `copies` of them alone. `status` is
    that of a trial without a verdict.
    """

    layer: str
    needed: bool | None
    needed_at_limit: bool | None = None
    error: Figure | None = None
    how: How | None = None
    fails_on: FailsOn | None = None
    reason: str
    status: TrialStatus | None = None

    @property
    def above(self) -> bool:
        """Whether dropping the layer is shown to exceed the limit that the search kept."""
        return bool(self.needed or self.needed_at_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """What the forecasts of a certificate rest on.

    Of the `builds` that were forecast far from the tolerance `right` had the verdict that was
    forecast. Of the drops that were forecast to fail `drawn` were drawn at random and built. With
    this `confidence` at most `wrong_at_most` of the predicted layers can go.
    """

    builds: Count
    right: Count
    drawn: Count
    wrong_at_most: Count
    confidence: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Evidence of minimality, layer by layer.

    `checked` are the kept layers that failing trials show to be needed, `predicted` those that
    only forecasts do, `unchecked` the others. `minimal` is True if all are checked. All this is by
    the tolerance. `uncertified` tells why nothing was tried where the mode is `none`. `limit` is
    the tighter limit that the search stayed below for the noise, else None. `minimal_at_limit`
    tells whether dropping any one layer exceeds that limit by trials, `minimal_by_forecasts`
    whether it does if the forecasts are right.
    """

    mode: Certify = "full"
    uncertified: Uncertified | None = None
    minimal: bool
    checked: Sequence[str]
    predicted: Sequence[str] = field(init=False, default=())
    unchecked: Sequence[str]
    evidence: Sequence[Need] = ()
    forecasts: Forecasts | None = None
    limit: Figure | None = None
    minimal_at_limit: bool = field(init=False)
    minimal_by_forecasts: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        needs = self.evidence
        predicted = [need.layer for need in needs if need.how == "predicted"]
        above = sum(need.above for need in needs)
        values = {
            "predicted": predicted,
            "minimal_at_limit": self.minimal or 0 < above == len(needs),
            "minimal_by_forecasts": self.minimal or 0 < above + len(predicted) == len(needs),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def spread(self) -> bool:
        """Whether rounding is spread over the network, and luck decides which layers are kept."""
        return self.uncertified is Uncertified.SPREAD

    @property
    def on_copies_alone(self) -> int:
        """How many layers are needed on copies of the samples, and not on these as given."""
        return sum(bool(need.needed) and need.fails_on == "copies" for need in self.evidence)

    @property
    def errors(self) -> Mapping[str, float | None]:
        """The error without each layer that is needed, by a trial or a forecast, by name."""
        needs = (need for need in self.evidence if need.needed or need.how == "predicted")
        return {need.layer: need.error for need in needs}


def forecasts_of(rungs: Sequence[Certificate]) -> Forecasts | None:
    """Return what the forecasts of all rungs rest on: those of each may be wrong."""
    forecasts = [certificate.forecasts for certificate in rungs if certificate.forecasts]
    keys = ("builds", "right", "drawn", "wrong_at_most")
    sums = {key: sum(getattr(forecast, key) for forecast in forecasts) for key in keys}
    confidence = 1 - sum(1 - forecast.confidence for forecast in forecasts)
    return Forecasts(**sums, confidence=confidence) if forecasts else None
