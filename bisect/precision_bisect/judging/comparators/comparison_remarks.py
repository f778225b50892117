"""What should be known of verdicts before they are believed: exact outputs, overlooked ones."""

import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.judging.comparators.metrics import METRICS
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.settings.sample_options import DEFAULT_TOLERANCE, WIDE, Limits, snr_of
from precision_bisect.trial import Kind, Trial, Verdict

_DIFFERENCES = [name for name, metric in METRICS.items() if metric.has_relative]
# Metrics with a limit in the unit of the outputs.
_ABSOLUTE = [*_DIFFERENCES, "l2"]
_OTHERWISE = "give inputs that reach larger values, or judge relatively by"


def limits_in_words(comparator: Comparator) -> str:
    """Return the limits that errors are multiples of, "" where the tolerance is the only one."""
    if not isinstance(comparator, PolygraphyComparator):
        return ""
    settings = comparator.settings()
    limits = {
        kind: {value for value in settings.get(kind, {}).values() if value}
        for kind in ("atol", "rtol", "classes")
    }
    # One limit alone is the tolerance, which the screen has beside the error.
    if len(set().union(*limits.values())) < 2:
        return ""
    ends_by_kind = {
        kind: sorted({min(values), max(values)}) for kind, values in limits.items() if values
    }
    return ", ".join(
        f"{kind} {' to '.join(f'{x:g}' for x in ends)}" for kind, ends in ends_by_kind.items()
    )


def wide_remark(comparator: Comparator, options: Options) -> str:
    """Say which limits of --tol are so wide that they are absolute alone, or none; "" for none.

    Beside --atol a limit of --tol would be the relative one.
    """
    if not isinstance(comparator, PolygraphyComparator) or comparator.metric not in _DIFFERENCES:
        return ""
    absolute, relative = (
        {name for name, limit in _by_name(limits).items() if limit is not None}
        for limits in (options.atol, options.rtol)
    )
    limits_by_use: dict[bool, list[str]] = {}
    tolerances = _by_name(options.tol)
    # The limit of "" is that of every output without one of its own.
    for name, limit in tolerances.items():
        of = [
            output
            for output in comparator.measured
            if name == (output if output in tolerances else "")
            and relative.isdisjoint(("", output))
        ]
        if limit is None or limit < WIDE or not of:
            continue
        used = any(absolute.isdisjoint(("", output)) for output in of)
        words = f"{shlex.quote(name)}={limit:g}" if name else f"{limit:g}"
        limits_by_use.setdefault(used, []).append(words)
    does = {True: "is an absolute limit", False: "sets none beside --atol"}
    return "; ".join(
        f"--tol {','.join(words)} {does[used]}: from {WIDE:g} on a relative one has to be asked "
        "for by --rtol"
        for used, words in limits_by_use.items()
    )


def _by_name(limits: Limits) -> Mapping[str, float | None]:
    return limits if isinstance(limits, Mapping) else {"": limits}


def exact_remark(comparator: Comparator, kinds: Mapping[str, str]) -> str:
    """Say which outputs are judged as classes, with their types from `kinds`; "" for none."""
    shares = _shares(comparator)
    if not shares:
        return ""
    exact = [name for name, share in shares.items() if not share]
    parts = [
        f"output {name!r} ({kinds[name]}) may differ in {share:.3g} of its elements"
        for name, share in shares.items()
        if share
    ]
    if exact:
        named = ", ".join(f"{name!r} ({kinds[name]})" for name in exact)
        one = f"output {named} is" if len(exact) == 1 else f"outputs {named} are"
        parts.append(
            f"{one} judged exactly, every element must be equal; {_allowing(exact[0])}, "
            f"--atol {shlex.quote(exact[0])}=1 judges numbers"
        )
    return "; ".join(parts)


def _failing(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that failed; forecasts do not count."""
    judged = (trial for trial in trials if trial.proposal.kind is not Kind.PREDICT)
    return [trial for trial in judged if trial.outcome.verdict is Verdict.FAIL]


def dropped_remark(trials: Sequence[Trial]) -> str:
    """Say how many trials failed only because a NaN was dropped inside; "" for none."""
    failed = _failing(trials)
    dropping = [layers for trial in failed if (layers := trial.outcome.evidence.dropped_nan)]
    if not dropping:
        return ""
    return (
        f"{len(dropping)} of {len(failed)} failing trials failed by NaN that FP32 has not alone: "
        f"{dropping[0][0]!r} reads it, and ONNX Runtime drops it there; engines that keep it "
        "give NaN"
    )


def decided_remark(comparator: Comparator, trials: Sequence[Trial]) -> str:
    """Say how many trials failed by classes alone; "" for none. Forecasts do not count."""
    shares = _shares(comparator)
    failed = [trial.outcome.evidence.by_classes for trial in _failing(trials)]
    decided = sum(failed)
    if not decided:
        return ""
    names = ", ".join(map(repr, shares))
    exact = next((name for name, share in shares.items() if not share), None)
    return (
        f"integer or boolean outputs ({names}) decided: {decided} of {len(failed)} failing trials "
        f"failed by them alone{f'; {_allowing(exact)}' if exact is not None else ''}"
    )


def overlooked_outputs(comparator: Comparator, reference: Sequence[Sample]) -> list[str]:
    """Return the outputs that are too small for their tolerance: zeros would pass for them."""
    if not isinstance(comparator, PolygraphyComparator) or comparator.metric not in _ABSOLUTE:
        return []
    return [] if non_finite(reference) else comparator.overlooked(reference)


def overlooked_remarks(comparator: Comparator, reference: Sequence[Sample]) -> list[str]:
    """Say which outputs are too small for their tolerance, and by which flags they are judged."""
    names = overlooked_outputs(comparator, reference)
    if not names or not isinstance(comparator, PolygraphyComparator):
        return []
    small = {name: _largest(name, reference) for name in names}
    zero = [name for name, largest in small.items() if not largest]
    advice = _advice(comparator, [name for name in small if name not in zero])
    remarks = [
        f"output {name!r} is smaller than its tolerance (at most {largest:.2g}, limit "
        f"{comparator.atol.of(name):g}), so zeros in its place would pass; {advice}"
        for name, largest in small.items()
        if largest
    ]
    # No tolerance would help these: only inputs can.
    remarks += [
        f"output {name!r} is {_nothing(name, reference)} in every sample, so zeros in its place "
        "pass; give inputs that reach it"
        for name in zero
    ]
    return remarks


def _shares(comparator: Comparator) -> Mapping[str, float]:
    shares = comparator.settings().get("classes", {})
    return shares if isinstance(shares, Mapping) else {}


def _allowing(name: str) -> str:
    return f"--tol {shlex.quote(name)}=0.02 lets 2% of them differ"


def _nothing(name: str, reference: Sequence[Sample]) -> str:
    return "0" if any(sample[name].size for sample in reference) else "empty"


def _largest(name: str, reference: Sequence[Sample]) -> float:
    return max(float(np.abs(sample[name]).max(initial=0)) for sample in reference)


def _advice(comparator: PolygraphyComparator, small: Sequence[str]) -> str:
    """Return the flags that judge these outputs by their own size, "" where there are none."""
    if not small:
        return ""
    share = DEFAULT_TOLERANCE
    if comparator.metric != "l2":
        shares = [comparator.rtol.of(name) for name in small]
        share = min(value if 0 < value < 1 else DEFAULT_TOLERANCE for value in shares)
    # Not by --rtol: where values are near 0, FP32's own rounding is beyond it.
    return f"{_OTHERWISE} {snr_of(share)}"
