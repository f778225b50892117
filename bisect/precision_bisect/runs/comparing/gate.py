"""Whether an answer keeps no more than was agreed on, for pull requests."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import RunFolderError, UsageError, counted, first_of
from precision_bisect.options import Options
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved

_MOST_NAMED = 20
"""Most layers that the line names; the result and the baseline have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The most layers that may be kept, and those that may be; None for what was not asked.

    A baseline that is `missing` was named, and nothing lies there yet.
    """

    max_kept: int | None = None
    baseline: frozenset[str] | None = None
    missing: Path | None = None

    def objections(self, result: Result) -> Iterator[str]:
        """Yield one line for each way in which the answer keeps more than it may."""
        kept = len(result.kept)
        if self.max_kept is not None and kept > self.max_kept:
            yield f"the answer keeps {counted(kept, 'layer')}, --max-kept is {self.max_kept}"
        new = [name for name in result.kept if name not in (self.baseline or ())]
        if self.baseline is not None and new:
            yield f"kept and not in the baseline: {first_of(new, _MOST_NAMED)}"


def read_gate(options: Options, max_kept: int | None, baseline: Path | None) -> Gate:
    """Return what the answer of these options is held against.

    `baseline` is the run folder, or the `result.json`, of a run with an answer; where nothing lies
    there, the model is new. Raises UsageError
    for a baseline of other types, RunFolderError for one that cannot be read or has no answer.
    """
    if baseline is None:
        return Gate(max_kept=max_kept)
    if not os.path.lexists(baseline):
        return Gate(max_kept=max_kept, missing=baseline)
    saved = read_saved(baseline)
    if not saved.answered:
        raise RunFolderError(
            f"--baseline {saved.path} has no answer, its status is {saved.result.status.value!r}",
            "name the result of a run that found one",
        )
    ladder = options.ladder or (options.low, options.high)
    if (saved.result.low, saved.result.high) != (ladder[0], ladder[-1]):
        raise UsageError(
            f"--baseline {saved.path} is of {saved.result.low} and {saved.result.high}, this run "
            f"of {ladder[0]} and {ladder[-1]}",
            "name a baseline of the same types",
        )
    return Gate(max_kept=max_kept, baseline=frozenset(saved.result.kept))
