"""Which engine a prediction is for, and how the answer does on others."""

from collections.abc import Iterator, Sequence

from precision_bisect.errors import printable
from precision_bisect.precisions import HALF_NAMES
from precision_bisect.runs.results.other_targets import OnTargets
from precision_bisect.runs.results.result import Result
from precision_bisect.settings.targets import LABELS, STORED, TARGETS, TargetChoice, TargetName


def names_of(target: TargetChoice) -> str:
    """Return what a target is called; of several, all of them."""
    return _names([each for each in TARGETS if target in (each, "all")])


def predicted(result: Result) -> str:
    """Return what the answer is predicted for, and what becomes of it on other targets.

    "" where an engine has judged, and of runs that do not tell.
    """
    if result.target is None:
        return ""
    return "; ".join([names_of(result.target), *_elsewhere(result)])


def _elsewhere(result: Result) -> Iterator[str]:
    for each in result.other_targets:
        names = _names(each.targets)
        error = "" if each.error is None else f": error {each.error:.3g}"
        if each.passed is None:
            yield f"not judged on {names}: {printable(each.message)}"
        elif each.passed:
            yield f"passes on {names}, too{error}"
        else:
            yield f"FAILS on {names}{error}, {_why(result, each)}"
    failing = [each.targets[0] for each in result.other_targets if each.passed is False]
    if failing:
        yield f"try --target {failing[0]} or all"


def _names(targets: Sequence[TargetName]) -> str:
    *first, last = (LABELS[each] for each in targets)
    return f"{', '.join(first)} and {last}" if first else last


def _why(result: Result, on: OnTargets) -> str:
    """Say what the targets store inside operators, where the run took FP32."""
    if not on.stored:
        return "where everything inside operators is FP32"
    half = next((each for each in (result.low, result.high) if each in HALF_NAMES), "16 bits")
    stored = [f"{STORED[each.inside]} {each.layers} {each.op_type}" for each in on.stored]
    return f"which stores {', '.join(stored)} in {half.upper()}"
