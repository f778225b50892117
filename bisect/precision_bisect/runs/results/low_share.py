"""How much of a model runs low under a plan, and what has its type whatever the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure

_NAMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShare:
    """Of an answer: how many `layers` run low, and what share of the work that is.

    `fixed` counts, by operator, what computes floats and has the same type in every plan: custom
    operators, layers in the bodies of If, Loop and Scan, sequences, what has no low form.
    `multiplications` and `bytes` are shares, 0 to 1, of the multiplications and of the bytes read
    and written, by the shapes of the first sample; None where there are none. Each multiplication
    in a body counts once; what bodies read and write does not.
    """

    layers: Count
    fixed: Mapping[str, Count] = field(default_factory=dict)
    multiplications: Figure | None = None
    bytes: Figure | None = None

    def words(self, runs: str, low: str) -> str:
        """Return how many layers run low, with their share, and how many others do not change."""
        verb = runs.replace("runs", "run" if self.layers != 1 else "runs")
        sentence = f"{self.layers} {verb} in {low.upper()}"
        shares = ((self.multiplications, "multiplications"), (self.bytes, "bytes"))
        percentages = [
            f"{_percent(share)} of the {what}" for share, what in shares if share is not None
        ]
        sentence += f" ({', '.join(percentages)})" if percentages else ""
        if self.fixed:
            names = [printable(name) for name in self.fixed]
            others = counted(sum(self.fixed.values()), "other")
            sentence += f"; {others} ({first_of(names, _NAMED)}) cannot change"
        return sentence


def _percent(share: float) -> str:
    """Return a share in percent; what is little is not called nothing, nor what is much all."""
    if 0 < share < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < share < 1 else f"{100 * share:.0f}%"
