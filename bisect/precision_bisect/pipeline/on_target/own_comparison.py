"""What trtexec 11.1 and later can tell of outputs by themselves, given references.

Its rule is one for all outputs: of every element the difference is at most `atol + rtol * |ref|`
(NVIDIA/TensorRT, samples/common/sampleUtils.cpp, v11.1). NaN is within any limit there, so the
script looks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.pipeline.on_target.exchange import Subject
from precision_bisect.protocols import Comparator

# The share of elements from which on it fails: below any tensor's one element.
_SHARE = "1e-12"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnComparison:
    """Flags by which trtexec compares.

    What passes is within the run's limits. What fails is beyond them where they are `exact`, else
    beyond a part of them.
    """

    flags: Sequence[str]
    exact: bool

    @property
    def beyond(self) -> str:
        """What is said of a plan that fails."""
        return (
            "over the limits" if self.exact else "over half of the limits, so --read has to tell"
        )


def own_comparison(subject: Subject, comparator: Comparator) -> OwnComparison | None:
    """Return how trtexec compares no more loosely than the run; None where it cannot.

    The run passes an element by its absolute or its relative error, trtexec by the sum of both
    limits: half of each is within either.
    """
    names = [spec.name for spec in subject.model.outputs]
    arrays = [sample[name] for sample in subject.outputs for name in names]
    if (
        not isinstance(comparator, PolygraphyComparator)
        or comparator.metric != "elementwise"
        or list(comparator.measured) != names
        or any(array.dtype.name not in ("float32", "float16") for array in arrays)
        or not all(array.size for array in arrays)
    ):
        return None
    atols = {comparator.atol.of(name) for name in names}
    rtols = {comparator.rtol.of(name) for name in names}
    # trtexec has one limit for all outputs: the strictest.
    atol, rtol = min(atols), min(rtols)
    both = bool(atol and rtol)
    limits = {"--atol": atol / 2 if both else atol, "--rtol": rtol / 2 if both else rtol}
    return OwnComparison(
        flags=[
            "--accuracyAlgorithm=l0",
            *(f"{flag}={limit!r}" for flag, limit in limits.items()),
            f"--accuracyThreshold={_SHARE}",
        ],
        exact=len(atols) == len(rtols) == 1 and not both,
    )
