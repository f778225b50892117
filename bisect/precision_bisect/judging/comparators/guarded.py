"""Comparators of others: they judge copies, what they raise is an error of theirs, NaN fails."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from numpy.typing import NDArray

from precision_bisect.errors import PluginError, PrecisionBisectError, UsageError
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """Judges as `comparator` does, which is installed as `name` and gets copies."""

    comparator: Comparator
    name: str

    @property
    def tolerance(self) -> float | None:
        return self.comparator.tolerance

    def settings(self) -> Mapping[str, Any]:
        return self.comparator.settings()

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples. Raises PluginError where the comparator raises, and MemoryError."""
        try:
            return self.comparator.judge(copied(outputs), copied(reference))
        except (MemoryError, PrecisionBisectError):
            raise
        except Exception as error:  # others' code may raise anything
            raise PluginError(
                f"the metric {self.name} failed: {first_line(error)}", "report it to its author"
            ) from error


class OfPython(Guarded):
    """A comparator that an object makes which Python gave; other processes do not have that."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        stays_here("--metric", self.name)


def stays_here(flag: str, name: str) -> NoReturn:
    """Raise UsageError for an object that would have to be sent."""
    raise UsageError(
        f"trials run in other processes, which do not have the object {name} of {flag}",
        "keep them in this one with --isolate never, or give it by name",
    )


def copied(samples: Sequence[Sample]) -> list[dict[str, NDArray[Any]]]:
    """Return what others may change, lists and dicts included, without changing the samples."""
    return [{name: array.copy() for name, array in sample.items()} for sample in samples]


def numbered(judgement: Judgement) -> Judgement:
    """Return the judgement; where the error is NaN, as a failure with an infinite error.

    NaN compares as neither within nor above a tolerance, so no search could use it. A pass with
    NaN means that the comparator did not notice.
    """
    if judgement.error is None or not math.isnan(judgement.error):
        return judgement
    return replace(
        judgement,
        verdict=Verdict.FAIL,
        error=math.inf,
        message=judgement.message or "the comparator's error is NaN",
    )
