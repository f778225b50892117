"""Polygraphy's metrics as plug-ins: one maker for all, which takes limits from the options."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from precision_bisect.errors import UsageError
from precision_bisect.judging.comparators.polygraphy import DIFFERENCES, PolygraphyComparator
from precision_bisect.judging.comparators.tolerance import Tolerance, tolerance_from
from precision_bisect.options import Options
from precision_bisect.settings.sample_options import DEFAULT_TOLERANCE, Limits


def by_polygraphy(
    options: Options, outputs: Sequence[str], classes: Collection[str]
) -> PolygraphyComparator:
    """Return the comparator for the options' metric; see `MakeComparator`.

    Classes must be exact, but for the share that --tol gives by their name; those that --atol or
    --rtol name are judged as numbers.
    """
    options, shares = _shares(options, [name for name in outputs if name in classes])
    atol, rtol = _absolute_and_relative(options)
    return PolygraphyComparator(
        shares=shares,
        metric=options.metric,
        atol=atol,
        rtol=rtol,
        outputs=tuple(outputs),
        quantile=options.quantile,
    )


def _shares(options: Options, classes: Sequence[str]) -> tuple[Options, Mapping[str, float]]:
    """Return the share of elements that may differ by class output, and the options without it."""
    as_numbers = {*_named(options.atol), *_named(options.rtol)}
    exact = [name for name in classes if name not in as_numbers]
    given = {name: limit for name, limit in _named(options.tol).items() if name in exact}
    shares = {**dict.fromkeys(exact, 0.0), **tolerance_from(given).per_output}
    for name, share in shares.items():
        if share >= 1.0:
            raise UsageError(
                f"--tol {name}={share:g} lets every element of the classes in {name!r} differ",
                f"give a share below 1, or --atol {name}={share:g} to judge it as numbers",
            )
    if not given:
        return options, shares
    left = {name: limit for name, limit in _named(options.tol).items() if name not in given}
    return replace(options, tol=left or None), shares


def _named(limits: Limits) -> Mapping[str, float]:
    return limits if isinstance(limits, Mapping) else {}


def _absolute_and_relative(options: Options) -> tuple[Tolerance, Tolerance]:
    """Return both limits: each its own flag's, else --tol's, else 0 where the other is given.

    Raises UsageError for limits that are missing, or that the metric does not have.
    """
    tol = options.tol
    if options.metric not in DIFFERENCES and options.rtol is not None:
        raise UsageError(f"--metric {options.metric} has no relative limit", "give --tol")
    if tol is None and options.atol is None and options.rtol is None:
        if options.metric not in DIFFERENCES:
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
