"""Verdicts by Polygraphy's comparators, and one figure beside each that a search can rank by.

Polygraphy decides whether a plan passes; the figure is computed here by the same formula, on the
tolerance's own scale. The reference is the second runner for the difference metrics (relative
error divides by it) and the first for PSNR and SNR (they take the first as the signal).

Polygraphy spends milliseconds per output on statistics for its log, hundreds for a million
elements. Where single elements settle the verdict (elementwise, max), it is given only those.

Outputs that are classes are not Polygraphy's: what counts is how many elements differ. A
difference between two class numbers says nothing of how wrong the choice is: 4000 for 4010 is as
wrong as 0, though it is off by a quarter of a percent.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.comparators.arrays import deciding, differences, ratios, widened
from precision_bisect.comparators.tolerance import Tolerance
from precision_bisect.errors import UsageError
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.model.fp32_outputs import non_finite
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.trial import Verdict

_Pair: TypeAlias = tuple[NDArray[Any], NDArray[Any]]

DIFFERENCES: Mapping[str, str] = {
    "elementwise": "elemwise",
    "max": "max",
    "mean": "mean",
    "quantile": "quantile",
}
"""The metrics with an absolute and a relative limit, by Polygraphy's names of the statistics."""
_LARGEST = 1e300
"""Stands for the error of finite outputs where the metric itself overflows."""
_HALF = 0.5
"""The limit of an output that must be exact, in elements: none passes, one is twice too many."""


@dataclass(frozen=True, kw_only=True)
class PolygraphyComparator:
    """Judges by one of Polygraphy's metrics.

    `atol` and `rtol` apply to the difference metrics, where an output passes if its absolute *or*
    its relative error is within the limit; the others use `atol` alone: L2 norm, 1 - cosine, and
    for PSNR and SNR the least number of decibels. None of them applies to the outputs that
    `shares` names: those must equal the reference but for that share of their elements.
    """

    judges_each: ClassVar[bool] = True
    metric: str
    atol: Tolerance
    rtol: Tolerance
    outputs: Sequence[str]
    quantile: float = 0.99
    shares: Mapping[str, float] = field(default_factory=dict)
    _functions: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise UsageError(f"--quantile {self.quantile} is not within (0, 1]")
        measured = self.measured
        self.atol.check_outputs(self.outputs, measured)
        if self.metric in DIFFERENCES:
            self.rtol.check_outputs(self.outputs, measured)
            for name in measured:
                if not self.atol.of(name) and not self.rtol.of(name):
                    raise UsageError(
                        f"output {name!r} has no tolerance above zero",
                        f"give it one by --atol or --rtol, as --atol {shlex.quote(name)}=0.01",
                    )
        elif any(self.atol.of(name) <= 0 for name in measured):
            raise UsageError(f"--metric {self.metric} needs a limit above zero", "give --tol")
        if self.metric == "cosine" and any(self.atol.of(name) >= 0.5 for name in measured):
            raise UsageError(
                "a cosine tolerance is the distance 1 - cosine and must be below 0.5",
                "Polygraphy's threshold 0.997 is --tol 0.003",
            )

    @property
    def measured(self) -> Sequence[str]:
        """The outputs that the metric judges."""
        return [name for name in self.outputs if name not in self.shares]

    @property
    def tolerance(self) -> float:
        """The limit on the error figure: the tolerance itself where there is but one, else 1.

        Outputs that must be exact have no limit of their own, and take the scale of the others.
        """
        limits = {*(self.atol.of(name) for name in self.measured), *self.shares.values()}
        if self.metric in DIFFERENCES:
            limits |= {self.rtol.of(name) for name in self.measured}
        limits.discard(0.0)
        return limits.pop() if len(limits) == 1 else 1.0

    def settings(self) -> Mapping[str, Any]:
        """Return metric and limits, for the fingerprint."""
        settings: dict[str, Any] = {
            "metric": self.metric,
            "atol": {name: self.atol.of(name) for name in self.measured},
        }
        if self.metric in DIFFERENCES:
            settings["rtol"] = {name: self.rtol.of(name) for name in self.measured}
        if self.shares:
            settings["classes"] = dict(self.shares)
        if self.metric == "quantile":
            settings["quantile"] = self.quantile
        return settings

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples; the figure is the worst one over samples and outputs."""
        if not outputs or len(outputs) != len(reference):
            raise ValueError(f"{len(outputs)} outputs for {len(reference)} references")
        if trouble := non_finite(outputs):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        passed, measured, worst, message = True, True, -1.0, ""
        with quiet(), without_torch(), np.errstate(all="ignore"):
            for name in self.outputs:
                pairs = [(o[name], r[name]) for o, r in zip(outputs, reference, strict=True)]
                ok, errors = self._judged(name, pairs)
                passed = passed and ok
                measured = measured and (ok or name in self.shares)
                if max(errors) > worst:
                    worst = max(errors)
                    message = self._told(name, pairs, errors.index(worst))
        alone = measured and not passed
        if alone:
            message += "; no other output is beyond its limit"
        agreed = self._agreed(passed, worst * self.tolerance, message)
        return replace(agreed, by_classes=alone)

    def _judged(self, name: str, pairs: Sequence[_Pair]) -> tuple[bool, list[float]]:
        """Return whether an output passes, and its error in each sample."""
        by_shape = [_by_shape(*pair) for pair in pairs]
        left = [pair for pair, error in zip(pairs, by_shape, strict=True) if error is None]
        passed, errors = self._measured(name, left) if left else (True, [])
        measured = iter(errors)
        told = [next(measured) if error is None else error for error in by_shape]
        return passed and math.inf not in by_shape, told

    def _measured(self, name: str, pairs: Sequence[_Pair]) -> tuple[bool, list[float]]:
        """Return the same of pairs with equal shapes and something in them."""
        if name in self.shares:
            errors = [_multiple(got, want, self.shares[name]) for got, want in pairs]
            return max(errors) <= 1.0, errors
        if self.metric == "elementwise":
            return self._elementwise(name, pairs)
        return self._by_sample(name, pairs)

    def _told(self, name: str, pairs: Sequence[_Pair], sample: int) -> str:
        """Say where the worst error is, of classes how many differ, and of shapes that they do."""
        where, (got, want) = f"output {name!r}, sample {sample}", pairs[sample]
        if got.shape != want.shape:
            return f"{where}: the shape is {list(got.shape)} instead of {list(want.shape)}"
        if name not in self.shares:
            return where
        return f"{where}: {int(np.count_nonzero(got != want))} of {want.size} elements differ"

    def overlooked(self, reference: Sequence[Sample]) -> list[str]:
        """Return the outputs in whose place zeros would pass; no plan can fail by those."""
        with quiet(), without_torch(), np.errstate(all="ignore"):
            return [
                name
                for name in self.measured
                if self._judged(name, [(np.zeros_like(r[name]), r[name]) for r in reference])[0]
            ]

    def _agreed(self, passed: bool, error: float, message: str) -> Judgement:
        """Put the figure on the verdict's side where rounding put it on the other."""
        if passed:
            return Judgement(
                verdict=Verdict.PASS, error=min(error, self.tolerance), message=message
            )
        above = float(np.nextafter(self.tolerance, np.inf))
        return Judgement(verdict=Verdict.FAIL, error=max(error, above), message=message)

    def _elementwise(self, name: str, pairs: Sequence[_Pair]) -> tuple[bool, list[float]]:
        """Return Polygraphy's verdict on one output of all samples, and each sample's error.

        Elements are judged one by one, so those that decide are put together in one array.
        """
        atol, rtol = self.atol.of(name), self.rtol.of(name)
        errors, chosen = [], []
        for got, want in pairs:
            got, want = widened(got, want, as_float=False)
            figures = ratios(*differences(got, want), atol, rtol)
            places = deciding(figures)
            chosen.append((got[places], want[places]))
            errors.append(_figure(figures[places[-1]], bounded=atol > 0 or rtol > 0))
        got, want = (np.concatenate(side) for side in zip(*chosen, strict=True))
        return bool(self._compare(name, got, want)), errors

    def _by_sample(self, name: str, pairs: Sequence[_Pair]) -> tuple[bool, list[float]]:
        """Return whether all samples pass by Polygraphy's word, and each sample's error."""
        passed, errors = True, []
        difference = self.metric in DIFFERENCES
        for got, want in pairs:
            got, want = widened(got, want, as_float=not difference)
            ok, error = (self._difference if difference else self._single)(name, got, want)
            passed = passed and ok
            errors.append(error)
        return passed, errors

    def _difference(self, name: str, got: NDArray[Any], want: NDArray[Any]) -> tuple[bool, float]:
        atol, rtol = self.atol.of(name), self.rtol.of(name)
        if self.metric == "max":
            places = [int(errors.argmax()) for errors in differences(got, want)]
            got, want = got[places], want[places]
        result = self._compare(name, got, want)
        values = result.metric_values()
        stat = DIFFERENCES[self.metric]
        error = np.fmin(
            _ratio(values[f"{stat}_absdiff"], atol), _ratio(values[f"{stat}_reldiff"], rtol)
        )
        return bool(result), _figure(error, bounded=atol > 0 or rtol > 0)

    def _single(self, name: str, got: NDArray[Any], want: NDArray[Any]) -> tuple[bool, float]:
        signal_first = self.metric in ("psnr", "snr")
        result = self._compare(name, *((want, got) if signal_first else (got, want)))
        (value,) = result.metric_values().values()
        limit = self.atol.of(name)
        if self.metric == "cosine":
            value = 1.0 - value
        if signal_first:
            return bool(result), _figure(10.0 ** min((limit - value) / 20.0, 300.0))
        return bool(result), _figure(value / limit)

    def _compare(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> Any:
        from polygraphy.comparator import IterationResult

        if name not in self._functions:
            self._functions[name] = self._function(name)
        pair = (IterationResult({name: array}, runner_name="") for array in (first, second))
        return self._functions[name](*pair)[name]

    def _function(self, name: str) -> Any:
        from polygraphy import comparator

        limit = self.atol.of(name)
        if self.metric in DIFFERENCES:
            return comparator.SimpleCompareFunc(
                atol=limit,
                rtol=self.rtol.of(name),
                check_error_stat=DIFFERENCES[self.metric],
                error_quantile=self.quantile if self.metric == "quantile" else None,
            )
        # By name, so that a metric without a function of its own is not judged by another's.
        return {
            "l2": lambda: comparator.L2CompareFunc(l2_threshold=limit),
            "cosine": lambda: comparator.CosineSimilarityCompareFunc(
                cosine_similarity_threshold=1.0 - limit
            ),
            "psnr": lambda: comparator.PsnrCompareFunc(psnr_threshold=limit),
            "snr": lambda: comparator.SnrCompareFunc(snr_threshold=limit),
        }[self.metric]()


def _ratio(value: float, limit: float) -> float:
    if limit:
        return float(value) / limit
    return 0.0 if value == 0 else float("inf")


def _figure(ratio: float, *, bounded: bool = True) -> float:
    """Return a multiple of the limit; finite, where there is a limit, also if it overflowed."""
    if bounded and not ratio <= _LARGEST:
        return _LARGEST
    return float(ratio)


def _by_shape(got: NDArray[Any], want: NDArray[Any]) -> float | None:
    """Return the error that shapes tell: 0 where both are empty. None where values decide."""
    if got.shape != want.shape:
        return math.inf
    return None if want.size else 0.0


def _multiple(got: NDArray[Any], want: NDArray[Any], share: float) -> float:
    """Return how many elements differ, as a multiple of how many may."""
    differing = int(np.count_nonzero(got != want))
    return differing / want.size / share if share else differing / _HALF
