"""What a loop comes to: how many steps a sample ran, and the errors from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from precision_bisect.errors import counted
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure

# Steps whose errors are said, beside the last ones.
_SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSteps:
    """How samples ran in a loop, and the errors of the answer, and with every layer low, by step.

    What `judged` them is the `last` step, `each`, or what a `function` returned; of that `steps`
    is None. Errors are the largest over the first `samples`, 0 for all, on the tolerance's scale;
    those of a step hold what the steps before have brought. They are empty where nothing tells
    them.
    """

    steps: Count | None
    feeds: Sequence[str] = ()
    judged: Literal["last", "each", "function"] = "last"
    errors: Sequence[Figure] = ()
    all_low: Sequence[Figure] = ()
    samples: Count = 0

    @property
    def words(self) -> str:
        """What is judged, and the errors by step, in one line."""
        if self.steps is None:
            what = "what the function of --loop returns is judged"
        elif self.judged == "each":
            what = f"each of {counted(self.steps, 'step')} is judged"
        else:
            what = f"judged after {counted(self.steps, 'step')}"
        # Where one of them ends first, NaN or Inf ended it.
        ends = len(self.errors), len(self.all_low)
        shown = [step for step in sorted({*_SHOWN, *ends}) if 0 < step <= max(ends)]
        rows = [("error", self.errors)]
        rows += [("all low", self.all_low)] if [*self.all_low] != [*self.errors] else []
        parts = [f"{name} {_figures(errors, shown)}" for name, errors in rows if errors]
        few = f"of the first {counted(self.samples, 'sample')} " if self.samples else ""
        at = f"; {few}at step {', '.join(map(str, shown))}: " if parts else ""
        return what + at + "; ".join(parts)


def _figures(errors: Sequence[float], steps: Sequence[int]) -> str:
    return ", ".join(f"{errors[step - 1]:.2g}" if step <= len(errors) else "-" for step in steps)
