"""The certificate: what is known of each kept layer, and by which trial.

`proving` reads it off the trials of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from precision_bisect.options import Certify
from precision_bisect.plan import Plan

SPREAD = "rounding is spread"
"""The reason why nothing is certified of an answer that had to be widened."""
How: TypeAlias = Literal["dropped", "implied", "group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is known of one kept layer.

    `needed` is True if a failing trial proves it, False if the plan passed without the layer, else
    None. `needed_at_limit` says the same for the limit that the search stayed below, None where
    that is the tolerance. `error` is that of the trial which `how` names:

    `dropped`: the plan without this layer alone. `implied`: a failing plan without the layer that
    kept all others and `more_kept` besides. `group`: the plan without all layers of its `group`.
    """

    layer: str
    needed: bool | None
    reason: str
    how: How | None = None
    error: float | None = None
    more_kept: int | None = None
    group: int | None = None
    needed_at_limit: bool | None = None

    @property
    def above(self) -> bool:
        """Whether dropping the layer is shown to exceed the limit that the search kept."""
        return bool(self.needed or self.needed_at_limit)

    def to_json(self) -> dict[str, Any]:
        """Return one entry of `certificate.evidence`."""
        return {
            "layer": self.layer,
            "needed": self.needed,
            "needed_at_limit": self.needed_at_limit,
            "error": self.error,
            "how": self.how,
            "more_kept": self.more_kept,
            "group": self.group,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Evidence of minimality, layer by layer.

    `checked` are the kept layers that were proven to be needed, `unchecked` the others. `minimal`
    is True if there are no others and each was dropped alone. `assumes` is "monotone" if some are
    proven by failing plans that kept more; where keeping more hurts, that proves nothing. All this
    is by the tolerance. `limit` is the tighter limit that the search stayed below for the noise,
    else None.
    """

    minimal: bool
    checked: Sequence[str]
    unchecked: Sequence[str]
    mode: Certify = "full"
    evidence: Sequence[Need] = ()
    assumes: Literal["monotone"] | None = None
    limit: float | None = None

    @property
    def spread(self) -> bool:
        """Whether rounding is spread over the network, and luck decides which layers are kept."""
        return {SPREAD} == {need.reason for need in self.evidence}

    @property
    def minimal_at_limit(self) -> bool:
        """Whether dropping any one layer exceeds the limit that the search stayed below."""
        above = bool(self.evidence) and all(need.above for need in self.evidence)
        return self.minimal or (above and self.assumes is None)

    @property
    def errors(self) -> Mapping[str, float | None]:
        """The error of each layer that was dropped alone and is needed, by name."""
        return {
            need.layer: need.error
            for need in self.evidence
            if need.needed and need.how == "dropped"
        }

    def to_json(self) -> dict[str, Any]:
        """Return `certificate` of `result.json`."""
        return {
            "mode": self.mode,
            "minimal": self.minimal,
            "checked": list(self.checked),
            "unchecked": list(self.unchecked),
            "evidence": [need.to_json() for need in self.evidence],
            "assumes": self.assumes,
            "limit": self.limit,
            "minimal_at_limit": self.minimal_at_limit,
        }


def shown_needed(plan: Plan, failing: Plan) -> int | None:
    """Return the layer of `plan` that a failing plan shows to be needed, None where it shows none.

    It is the one layer of `plan` that the failing plan lacks. Where the failing plan keeps exactly
    the others, that proves the need; where it keeps further layers, the proof assumes that
    keeping more never hurts.
    """
    lacking = plan.mask & ~failing.mask
    alone = lacking and not lacking & (lacking - 1)  # one bit of the mask
    return lacking.bit_length() - 1 if alone else None
