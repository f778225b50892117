"""A task metric of the user's own: `--check metric.py:accuracy_drop`, or a function of Python.

Comparators of others judge copies, what they raise is an error of theirs, and NaN fails.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import RAISED_BY_OTHERS, PluginError, PrecisionBisectError, UsageError
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.machine.answered_signals import code_of_others
from precision_bisect.machine.user_scripts import (
    OutOfMemory,
    ScriptFailed,
    first_line,
    load_function,
    running_script,
    script_copy,
)
from precision_bisect.protocols import Comparator, Judgement, Sample, T, dropping
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
        """Return the comparator's settings. Raises as `judge` does."""
        return self._of_others(lambda: dict(self.comparator.settings()))

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples. Raises PluginError where the comparator raises, and MemoryError."""

        def judged() -> Judgement:
            judgement = self.comparator.judge(copied(outputs), copied(reference))
            if not isinstance(judgement, Judgement):
                raise TypeError(f"it returned {type(judgement).__name__}, which is no Judgement")
            return numbered(judgement)

        return self._of_others(judged)

    def _of_others(self, call: Callable[[], T]) -> T:
        try:
            with code_of_others():
                return call()
        except (MemoryError, PrecisionBisectError):
            raise
        except RAISED_BY_OTHERS as error:
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


class FunctionComparator:
    """Judges by `function(outputs, reference)` over all samples at once.

    Both arguments are lists of dicts from output name to array, one per sample. The function
    returns an error, smaller is better, that passes when it is at most the tolerance; or a bool,
    where there is no figure. NaN or Inf in an output fails before the function is asked.
    """

    _path: Path | None = None

    def __init__(self, function: Callable[..., Any], name: str, tolerance: float | None) -> None:
        self._function = function
        self._called = name
        self._settings: dict[str, Any] = {"metric": name, "tolerance": tolerance}
        self.tolerance = tolerance

    def __reduce__(self) -> tuple[Any, ...]:
        stays_here("--check", self._called)

    def settings(self) -> Mapping[str, Any]:
        """Return the function, of a script its hash, and the limit, for the fingerprint."""
        return self._settings

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples.

        Raises UsageError when the function fails or returns no figure.
        """
        if not outputs or len(outputs) != len(reference):
            raise ValueError(f"{len(outputs)} outputs for {len(reference)} references")
        # A function of the user's would have to expect NaN, and few do: they would pass it.
        if trouble := non_finite(outputs):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        try:
            with running_script(self._path):
                # Copies, as a function may well change what it is given.
                value = self._function(copied(outputs), copied(reference))
                if isinstance(value, bool | np.bool_):
                    return Judgement(verdict=Verdict.PASS if value else Verdict.FAIL, error=None)
                error = _as_float(value)
        except ScriptFailed as failed:
            lack = isinstance(failed.__cause__, MemoryError)
            kind = OutOfMemory if lack else UsageError
            raise kind(f"{self._called} failed: {failed}", "run it on its own first") from failed
        if error is None:
            raise UsageError(
                f"{self._called} returned {type(value).__name__}, which is no float",
                "return an error as a float, or a bool",
            )
        return self._by_figure(error)

    def _by_figure(self, error: float) -> Judgement:
        if self.tolerance is None:
            raise UsageError(
                f"{self._called} returned a figure and there is no limit for it",
                "give --tol, or return a bool",
            )
        if math.isnan(error):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message="metric is NaN")
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error)


class ScriptComparator(FunctionComparator):
    """Judges by a function of the user's script."""

    def __init__(self, path: Path, name: str, tolerance: float | None) -> None:
        super().__init__(load_function(path, name), f"{path.name}:{name}", tolerance)
        self._path = self.path = path.absolute()
        self._name = name
        self._source = path.read_bytes()
        digest = hashlib.sha256(self._source).hexdigest()
        self._settings = {"check": self._called, "script": digest, "tolerance": tolerance}

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes load the script themselves: its functions cannot be sent."""
        return _again, (self.path, self._source, self._name, self.tolerance)


def _as_float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _again(path: Path, source: bytes, name: str, tolerance: float | None) -> ScriptComparator:
    """Return the comparator in another process.

    Raises UsageError where its copy does not run, as without a module beside the script.
    """
    return ScriptComparator(script_copy(path, source, "check"), name, tolerance)


def judge_outputs(
    comparator: Comparator, outputs: Sequence[Sample], reference: Sequence[Sample]
) -> Judgement:
    """Judge for a comparator that need not know of NaN; copies may overflow in FP32, too."""
    trouble = non_finite(outputs) or non_finite(reference)
    layers = () if trouble else dropping(outputs)
    if layers:
        trouble = f"{layers[0]!r} reads NaN that FP32 has not, and drops it here"
    if trouble:
        return Judgement(verdict=Verdict.FAIL, error=math.inf, message=trouble, dropped_nan=layers)
    return numbered(comparator.judge(outputs, reference))
