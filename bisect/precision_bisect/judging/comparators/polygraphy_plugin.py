"""Verdicts by Polygraphy's metrics, and one figure beside each that a search can rank by.

The figure is on the tolerance's own scale: one number, or one per output. The options say the
limits; one maker serves all metrics.

Outputs that are classes are not Polygraphy's: what counts is how many elements differ. A
difference between two class numbers says nothing of how wrong the choice is: 4000 for 4010 is as
wrong as 0, though it is off by a quarter of a percent.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import UsageError
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.judging.comparators.metrics import METRICS, multiple
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.settings.sample_options import DEFAULT_TOLERANCE, Limits, relative_of
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """A default limit and limits of single outputs. Limits are finite and not negative."""

    default: float | None = None
    per_output: Mapping[str, float] = field(default_factory=dict)

    def of(self, output: str) -> float:
        """Return the limit for an output. Raises UsageError where there is none."""
        limit = self.per_output.get(output, self.default)
        if limit is None:
            raise UsageError(
                f"no tolerance is given for output {output!r}",
                "add a bare number for the outputs not named, such as --tol 1e-2",
            )
        return limit

    @property
    def relative(self) -> "Tolerance":
        """The relative limits of a tolerance that is for both kinds."""
        return Tolerance(
            default=None if self.default is None else relative_of(self.default),
            per_output={name: relative_of(limit) for name, limit in self.per_output.items()},
        )

    def without(self, outputs: Collection[str]) -> "Tolerance":
        """Return the tolerance whose default is not for these outputs: their limit is 0."""
        return replace(self, per_output={**dict.fromkeys(outputs, 0.0), **self.per_output})

    def only(self, outputs: Collection[str]) -> "Tolerance":
        """Return the tolerance without limits of others than these outputs."""
        kept = {name: limit for name, limit in self.per_output.items() if name in outputs}
        return replace(self, per_output=kept)

    def over(self, other: "Tolerance") -> "Tolerance":
        """Return these limits, and where there are none those of `other`."""
        if self.default is not None:
            return self
        return Tolerance(default=other.default, per_output={**other.per_output, **self.per_output})

    def check_outputs(self, outputs: Sequence[str], needed: Sequence[str]) -> None:
        """Raise UsageError for a limit of an unknown output, and for a needed one without any."""
        for name in self.per_output:
            if name not in outputs:
                raise UsageError(
                    f"a tolerance is given for {name!r}, which is no output of the model",
                    f"its outputs are {', '.join(outputs)}",
                )
        for name in needed:
            self.of(name)


def tolerance_from(limits: Limits) -> Tolerance:
    """Return the tolerance for limits as the options hold them."""
    by_name = dict(limits) if isinstance(limits, Mapping) else {"": limits}
    by_output = {name: float(limit) for name, limit in by_name.items() if limit is not None}
    return Tolerance(default=by_output.pop("", None), per_output=by_output)


STEP = 1.0
"""The least limit that lets integers differ: those below say nothing of sizes."""


def by_size(options: Options, integers: Collection[str]) -> Sequence[str]:
    """Return the integer outputs that a limit is given for in their unit: one step, or more.

    A limit by the output's name goes before one for all. Below a step --tol means the share of
    elements that may differ, or the other outputs.
    """
    tolerances = (tolerance_from(limits) for limits in (options.tol, options.atol))
    limits = [(tolerance.per_output, tolerance.default) for tolerance in tolerances]

    def limit(name: str) -> float:
        named = [some[name] for some, _ in limits if name in some]
        return max(named or [default or 0.0 for _, default in limits])

    return [name for name in integers if options.check is None and limit(name) >= STEP]


def tolerance_of(comparator: Comparator) -> float | Mapping[str, Any] | None:
    """Return the one limit if there is only one, else all as the comparator lists them."""
    settings = comparator.settings()
    limit = comparator.tolerance
    kinds = ("atol", "rtol", "classes")
    limits = {value for key in kinds for value in settings.get(key, {}).values()}
    if limit is None or "atol" not in settings or limits - {0.0} == {limit}:
        return limit
    return {key: settings[key] for key in kinds if key in settings}


_Pair: TypeAlias = tuple[NDArray[Any], NDArray[Any]]

# Stands for the error of finite outputs where the metric itself overflows.
_LARGEST = 1e300
# The limit of an output that must be exact, in elements: none passes, one is twice too many.
_HALF = 0.5


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

    def __post_init__(self) -> None:
        measured = self.measured
        self.atol.check_outputs(self.outputs, measured)
        if METRICS[self.metric].has_relative:
            self.rtol.check_outputs(self.outputs, measured)
            # Without any limit every rounding fails, and FP32 alone would be the answer.
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
        if METRICS[self.metric].has_relative:
            limits |= {self.rtol.of(name) for name in self.measured}
        limits.discard(0.0)
        return limits.pop() if len(limits) == 1 else 1.0

    def of_outputs(self, outputs: Sequence[str]) -> Self:
        """Return the same judge for other outputs. Raises UsageError where one has no limit."""
        shares = {name: share for name, share in self.shares.items() if name in outputs}
        return replace(
            self,
            outputs=tuple(outputs),
            shares=shares,
            atol=self.atol.only(outputs),
            rtol=self.rtol.only(outputs),
        )

    def settings(self) -> Mapping[str, Any]:
        """Return metric and limits, for the fingerprint."""
        settings: dict[str, Any] = {
            "metric": self.metric,
            "atol": {name: self.atol.of(name) for name in self.measured},
        }
        if METRICS[self.metric].has_relative:
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
        worst, beyond, message = -1.0, set[str](), ""
        for name in self.outputs:
            pairs = [(o[name], r[name]) for o, r in zip(outputs, reference, strict=True)]
            errors = self._errors(name, pairs)
            if not max(errors) <= 1.0:
                beyond.add(name)
            if max(errors) > worst:
                worst = max(errors)
                message = self._told(name, pairs, errors.index(worst))
        error, by_classes = worst * self.tolerance, bool(beyond) and beyond <= self.shares.keys()
        if not beyond:
            return Judgement(verdict=Verdict.PASS, error=error, message=message)
        if by_classes:
            message += "; no other output is beyond its limit"
        return Judgement(
            verdict=Verdict.FAIL,
            # Rounding may have put it on the other side of the limit.
            error=max(error, float(np.nextafter(self.tolerance, np.inf))),
            message=message,
            by_classes=by_classes,
        )

    def _errors(self, name: str, pairs: Sequence[_Pair]) -> list[float]:
        """Return the error of an output in each sample, as a multiple of what is allowed."""
        with np.errstate(all="ignore"):
            return [self._error(name, *pair) for pair in pairs]

    def _error(self, name: str, got: NDArray[Any], want: NDArray[Any]) -> float:
        if name in self.shares and got.shape == want.shape:
            return _differing(got, want, self.shares[name])
        limits = {"metric": self.metric, "quantile": self.quantile}
        atol, rtol = self.atol.of(name), 0.0
        if METRICS[self.metric].has_relative:
            rtol = self.rtol.of(name)
        error = multiple(limits, atol, rtol, got, want)
        # Finite outputs have a finite error, where there is a limit, also if the metric overflows.
        overflows = got.shape == want.shape and (atol > 0 or rtol > 0) and not error <= _LARGEST
        return _LARGEST if overflows else error

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
        pairs = {n: [(np.zeros_like(r[n]), r[n]) for r in reference] for n in self.measured}
        return [name for name, some in pairs.items() if max(self._errors(name, some)) <= 1.0]


def _differing(got: NDArray[Any], want: NDArray[Any], share: float) -> float:
    """Return how many elements differ, as a multiple of how many may."""
    differing = int(np.count_nonzero(got != want))
    return differing / max(want.size, 1) / share if share else differing / _HALF


def by_polygraphy(
    options: Options, outputs: Sequence[str], classes: Collection[str]
) -> PolygraphyComparator:
    """Return the comparator for the options' metric; see `MakeComparator`.

    Classes must be exact, but for the share that --tol gives by their name; those that --atol or
    --rtol name are judged as numbers.
    """
    options, shares = _class_shares(options, [name for name in outputs if name in classes])
    atol, rtol = _absolute_and_relative(options)
    return PolygraphyComparator(
        shares=shares,
        metric=str(options.metric),
        atol=atol,
        rtol=rtol,
        outputs=tuple(outputs),
        quantile=options.quantile,
    )


def _class_shares(options: Options, classes: Sequence[str]) -> tuple[Options, Mapping[str, float]]:
    """Return the share of elements that may differ by class output, and the options without it."""
    as_numbers = {*_named(options.atol), *_named(options.rtol)}
    exact = [name for name in classes if name not in as_numbers]
    limits = {name: limit for name, limit in _named(options.tol).items() if name in exact}
    shares = {**dict.fromkeys(exact, 0.0), **tolerance_from(limits).per_output}
    for name, share in shares.items():
        if share >= 1.0:
            raise UsageError(
                f"--tol {name}={share:g} lets every element of the classes in {name!r} differ",
                f"give a share below 1, or --atol {name}={share:g} to judge it as numbers",
            )
    # The limits of other outputs stay errors, with their own default.
    if not limits:
        return options, shares
    others = {name: limit for name, limit in _named(options.tol).items() if name not in limits}
    return replace(options, tol=others or None), shares


def _named(limits: Limits) -> Mapping[str, float]:
    return limits if isinstance(limits, Mapping) else {}


def _absolute_and_relative(options: Options) -> tuple[Tolerance, Tolerance]:
    """Return both limits: each its own flag's, else --tol's, else 0 where the other is given.

    Raises UsageError for limits that are missing, or that the metric does not have.
    """
    tol = options.tol
    has_relative = METRICS[str(options.metric)].has_relative
    if not has_relative and options.rtol is not None:
        raise UsageError(f"--metric {options.metric} has no relative limit", "give --tol")
    if tol is None and options.atol is None and options.rtol is None:
        if not has_relative:
            raise UsageError(f"--metric {options.metric} has no default tolerance", "give --tol")
        tol = DEFAULT_TOLERANCE
    both = Tolerance(default=0.0) if tol is None else tolerance_from(tol)
    atol = tolerance_from(options.atol)
    rtol = tolerance_from(options.rtol)
    # Who names an output by --atol asks for no relative limit of it, and the other way round.
    return (
        atol.over(both.without(rtol.per_output)),
        rtol.over(both.relative.without(atol.per_output)),
    )
