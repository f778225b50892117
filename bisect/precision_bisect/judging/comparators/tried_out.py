"""Whether a comparator can fail, found out before anything is judged by it.

A check that compares the reference with itself passes whatever a plan computes; a score passes
nothing, or everything. So the reference itself is judged once, and then outputs that are clearly
wrong, until one of them fails. Only a comparator that passes all of those is refused: to a user's
check zeros may be right, and the order of elements may not matter. The checks that come along must
fail zeros, and what is left where only padding or background is.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import PrecisionBisectError, UsageError
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.machine.user_scripts import ScriptFailed
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.trial import Verdict

NEAR = 1e-3
"""How near to -1 a figure is that of a negated score, and how far below 0 an error may be."""
_DECIBELS = "return an error that is 0 for equal outputs; of decibels 10 ** (-score / 20)"


class Wrong(StrEnum):
    """Outputs that are clearly wrong, as messages call them."""

    ZEROS = "zeros"
    COMMONEST = "the commonest value everywhere"
    ROW = "one row everywhere"
    OTHERS = "the outputs of other samples"
    SHUFFLED = "shuffled values"
    FAR = "values turned round"


class _WrongOutcome(NamedTuple):
    """What was said of wrong outputs; None where the comparator could not judge them."""

    wrong: Wrong
    judgement: Judgement | None

    @property
    def passed(self) -> bool:
        return self.judgement is not None and self.judgement.verdict is Verdict.PASS

    @property
    def figure(self) -> float | None:
        """The error, None where it is no finite figure."""
        error = self.judgement.error if self.judgement else None
        return error if error is not None and math.isfinite(error) else None


def try_out(comparator: Comparator, reference: Sequence[Sample], name: str) -> None:
    """Judge the reference, and wrong outputs until one fails.

    Polygraphy's metrics compare; whether a limit is too wide for an output is told of them by
    `overlooked_remarks`. Raises UsageError for a comparator that fails the reference itself, that
    passes everything, or whose figure is a score; `name` is how the command line calls it.
    """
    if isinstance(comparator, PolygraphyComparator) or non_finite(reference):
        return
    if isinstance(comparator, ReadyMade):
        _refuse_blind(comparator, reference, name)
    own = _own(comparator, reference)
    # A negated cosine fails for turned outputs, and passes everything that a plan computes.
    sound = own.verdict is Verdict.PASS and not _near(own.error, -1.0)
    below = _below_zero(own.error, comparator.tolerance)
    outcomes: list[_WrongOutcome] = []
    for wrong, outputs in _wrong_outputs(reference):
        outcomes.append(_WrongOutcome(wrong, _judged(comparator, outputs, reference)))
        # Where the reference is below zero, as by -PSNR or a limit minus it, the first ones have
        # to be above the limit: turned round, outputs are by both.
        if sound and _can_fail(outcomes[0] if below else outcomes[-1]):
            return
    raise UsageError(*_trouble(name, own, outcomes, comparator.tolerance))


def _refuse_blind(check: ReadyMade, reference: Sequence[Sample], name: str) -> None:
    """Raise UsageError for a check that passes what has lost everything but padding."""
    hint = "give inputs in which the model finds more"
    if not any(sample[output].any() for sample in reference for output in check.outputs):
        raise UsageError(f"{name} has nothing to judge: these outputs are empty, or zeros", hint)
    check = check if check.forms else check.fitted(reference)
    rows = [
        {name: _commonest_row(array, (check.forms or {}).get(name)) for name, array in s.items()}
        for s in reference
    ]
    for wrong, outputs in (
        (Wrong.ZEROS, _each(reference, np.zeros_like)),
        (Wrong.COMMONEST, _each(reference, _commonest)),
        (Wrong.ROW, rows),
    ):
        outcome = _WrongOutcome(wrong, _judged(check, outputs, reference))
        # Where nothing is lost by it, the value is all that there is.
        if outcome.passed and (wrong is Wrong.ZEROS or outcome.figure):
            raise UsageError(
                f"{name} passes {wrong} instead of these outputs: {outcome.figure or 0.0:.4g}, "
                f"tolerance {check.tolerance:g}",
                f"{hint}, or a smaller --tol",
            )


def _commonest(array: NDArray[Any]) -> NDArray[Any]:
    """Return nothing but the value that most elements have; the array where none has so many."""
    values, counts = np.unique(array, return_counts=True)
    common = bool(array.size) and 2 * counts.max() > array.size
    return np.full_like(array, values[counts.argmax()]) if common else array


def _commonest_row(array: NDArray[Any], form: Any) -> NDArray[Any]:
    """Return nothing but a row of the class that most rows have, of floats along their classes."""
    axis = form["axis"] if isinstance(form, dict) and "axis" in form else form
    axis = axis if isinstance(axis, int) and array.ndim == 4 else -1
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size:
        return array
    rows = np.moveaxis(array, axis, -1)
    classes = rows.argmax(-1)
    values, counts = np.unique(classes, return_counts=True)
    row = rows[classes == values[counts.argmax()]][0]
    return np.moveaxis(np.broadcast_to(row, rows.shape), -1, axis).copy()


def _own(comparator: Comparator, reference: Sequence[Sample]) -> Judgement:
    """Judge the reference itself. Raises UsageError as the comparator does."""
    try:
        return comparator.judge(reference, reference)
    except UsageError as error:
        if not isinstance(error.__cause__, ScriptFailed):
            raise
        hint = "it was given outputs equal to the reference, for which it has to return 0 or True"
        raise UsageError(error.message, hint) from error


def _judged(
    comparator: Comparator, outputs: Sequence[Sample], reference: Sequence[Sample]
) -> Judgement | None:
    try:
        return comparator.judge(outputs, reference)
    except PrecisionBisectError:
        return None


def _can_fail(outcome: _WrongOutcome) -> bool:
    """Tell whether a comparator was seen to fail: zeros make NaN of what is not compared, too."""
    judgement = outcome.judgement
    clear = outcome.figure is not None or (judgement is not None and judgement.error is None)
    return not outcome.passed and (clear or outcome.wrong is not Wrong.ZEROS)


def _near(error: float | None, what: float) -> bool:
    return error is not None and abs(error - what) <= NEAR


def _below_zero(error: float | None, tolerance: float | None) -> bool:
    return error is not None and error < -max(tolerance or 0.0, NEAR)


def _trouble(
    name: str, own: Judgement, outcomes: Sequence[_WrongOutcome], tolerance: float | None
) -> tuple[str, str]:
    """Return what is wrong with a comparator, and what to do about it."""
    figures = {outcome.wrong: outcome.figure for outcome in outcomes if outcome.figure is not None}
    limit = "" if tolerance is None else f", tolerance {tolerance:g}"
    if own.error is None:
        return _without_figures(name, own, outcomes)
    if not math.isfinite(own.error):
        return f"{name} gives {own.error:g} for outputs equal to the reference", _DECIBELS
    # The same figure for right and wrong outputs: what is returned does not depend on them.
    if {*figures.values()} == {own.error}:
        return _never_compares(name, f"gives {own.error:.4g}", outcomes)
    if figures and own.error > NEAR and max(figures.values()) <= own.error:
        wrong, figure = min(figures.items(), key=lambda item: item[1])
        return (
            f"{name} gives a score: {own.error:.4g} for outputs equal to the reference, "
            f"{figure:.4g} for {wrong}",
            f"return {own.error:.4g} - score",
        )
    if _near(own.error, -1.0) or _below_zero(own.error, tolerance):
        return (
            f"{name} gives a negated score: {own.error:.4g} for outputs equal to the reference",
            f"return {-own.error:.4g} - score",
        )
    if own.verdict is Verdict.FAIL:
        return (
            f"{name} fails the reference itself: {own.error:.4g}{limit}",
            "return what is lost against the reference, or give a larger --tol",
        )
    passed = ", ".join(f"{figure:.4g} for {wrong}" for wrong, figure in figures.items())
    return (
        f"{name} passes whatever is wrong: {passed}{limit}",
        "give a smaller --tol, or inputs on which it depends more",
    )


def _without_figures(
    name: str, own: Judgement, outcomes: Sequence[_WrongOutcome]
) -> tuple[str, str]:
    if own.verdict is Verdict.PASS:
        return _never_compares(name, "passes", outcomes)
    turned = any(outcome.passed for outcome in outcomes)
    return (
        f"{name} fails outputs equal to the reference" + " and passes wrong ones" * turned,
        "return True where the outputs pass",
    )


def _never_compares(name: str, does: str, outcomes: Sequence[_WrongOutcome]) -> tuple[str, str]:
    wrong = ", ".join(outcome.wrong for outcome in outcomes)
    return (
        f"{name} does not compare: it {does}, whether it is given the reference itself or {wrong}",
        "compare its first argument, the outputs, with its second, the reference",
    )


def _wrong_outputs(reference: Sequence[Sample]) -> Iterator[tuple[Wrong, Sequence[Sample]]]:
    """Yield outputs of the reference's shapes that are wrong, each as they are needed."""
    chance = np.random.default_rng(0)
    makers: dict[Wrong, Callable[[], Sequence[Sample]]] = {
        Wrong.ZEROS: lambda: _each(reference, np.zeros_like),
        Wrong.OTHERS: lambda: [*reference[1:], reference[0]],
        Wrong.SHUFFLED: lambda: _each(
            reference, lambda array: chance.permutation(array.ravel()).reshape(array.shape)
        ),
        Wrong.FAR: lambda: _each(reference, _far),
    }
    for wrong, make in makers.items():
        outputs = make()
        pairs = [
            (one[name], array)
            for one, other in zip(outputs, reference, strict=True)
            for name, array in other.items()
        ]
        # Samples need not have one shape.
        alike = all(one.shape == other.shape for one, other in pairs)
        if alike and not all(np.array_equal(one, other) for one, other in pairs):
            yield wrong, outputs


def _each(
    reference: Sequence[Sample], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> Sequence[Sample]:
    return [{name: change(array) for name, array in sample.items()} for sample in reference]


def _far(array: NDArray[Any]) -> NDArray[Any]:
    """Return values far from these; whole numbers of the same range, since they may be classes."""
    if array.dtype.kind == "f":
        limits = np.finfo(array.dtype)
        far = np.clip(1 - 10 * array.astype(np.float64), limits.min, limits.max)
        return np.asarray(far, array.dtype)
    if array.dtype.kind == "b" or not array.size:
        return np.asarray(np.logical_not(array))
    with np.errstate(over="ignore"):
        far = np.asarray(array.min() + array.max() - array, array.dtype)
    return np.asarray(np.bitwise_xor(array, 1)) if np.array_equal(far, array) else far
