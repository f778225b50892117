"""Copies of the samples that differ by one part in 100,000, or by one step of the low type.

One evaluation of a plan is a draw: another order of sums, another kernel or a rebuild rounds
otherwise, and near the tolerance that decides. Copies draw again. A smaller change would be lost
where the first layer runs low and rounds its input; a larger one draws the same spread. Where an
input's values are exact in a 16-bit type, as pixels and stored FP16 are, one part in 100,000 is
lost, too: they change by one step of that type, and stay exact in it.

Where no input is a float, only the emulator can draw again: it takes a factor for what each layer
computes, before that is rounded.

Samples with an input at the end of its range are made up, and called so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.machine.threads import side_by_side
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.trial import SampleSet

CHANGE = 1e-5
"""The standard deviation of the relative change of each element of a float input."""
# From this share of values on an input counts as exact in the low type.
_MOSTLY_EXACT = 0.9
FACTOR_CHANGE = 1e-6
"""The same of a layer's factor: about what the order of FP32 sums changes."""
# Bytes of a draw's copies up to which they are held for further plans. A bound on memory.
_MOST_HELD = 2**26
FACTORS = "precision_bisect/factors"
"""The emulator's input of one factor per layer, shape (layers,), where there is no float input."""

Samples: TypeAlias = Mapping[SampleSet, tuple[Sequence[Sample], Sequence[Sample]]]
"""For each sample set the feeds and their reference outputs, in the same order."""
Pair: TypeAlias = tuple[Sequence[Sample], Sequence[Sample]]


class Refers(Protocol):
    """Computes the FP32 outputs of a sample, by name, or of one `step` of it.

    After `rest` it holds no memory.
    """

    def __call__(self, feed: Sample) -> Sample: ...

    def step(self, feed: Sample) -> Sample: ...

    def rest(self) -> None: ...


class Draws(Protocol):
    """What judges a plan beside the samples: `count` times, of which `allowed` may fail."""

    @property
    def count(self) -> int: ...

    @property
    def allowed(self) -> int: ...

    def make(
        self, where: SampleSet, draw: int, number: int, places: Sequence[int] | None = None
    ) -> Pair: ...

    def rest(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Copies:
    """Makes copies of the samples, each with its own reference; the same for the same numbers.

    `count` of them make a draw, `allowed` of which may fail. `refer` computes the FP32 outputs of
    one feed, or raises RuntimeError. With `layers` above 0 a copy has that many factors instead of
    changed inputs. `half` is the 16-bit type that a layer may round its inputs to. `rest` frees
    what `refer` holds. `at_once` references are computed side by side.
    """

    samples: Samples
    count: int
    refer: Callable[[Sample], Sample]
    allowed: int = 0
    seed: int = 0
    layers: int = 0
    half: LowType = FP16
    rest: Callable[[], None] = field(default=lambda: None)
    at_once: int = 1
    _held: tuple[object, dict[int, "_Copy"]] = field(init=False, default=(None, {}))
    _exact_types: tuple[SampleSet | None, Sequence[Mapping[str, LowType | None]]] = field(
        init=False, default=(None, ())
    )

    def make(
        self, where: SampleSet, draw: int, number: int, places: Sequence[int] | None = None
    ) -> Pair:
        """Return the feeds of one copy of a sample set, and their reference outputs.

        With `places` only of the samples at these places of the set.
        """
        drawn, copies = self._held
        if drawn != (where, draw):
            copies = {}
            # In one: workers on other draws share this object.
            self._held = (where, draw), copies
        copy = copies.get(number) or self._make(where, draw, number)
        wanted = range(len(copy.feeds)) if places is None else places
        self._refer(copy, [place for place in wanted if place not in copy.reference])
        pair = [copy.feeds[i] for i in wanted], [copy.reference[i] for i in wanted]
        # The first ones, as many as fit: most plans that are judged on one draw fail on these.
        whole = copy.feeds, [*copy.reference.values()]
        if number == 0 or _nbytes(whole) * (len(copies) + 1) <= _MOST_HELD:
            copies[number] = copy
        return pair

    def _make(self, where: SampleSet, draw: int, number: int) -> "_Copy":
        feeds, reference = self.samples[where]
        rng = np.random.default_rng((self.seed, draw, number, *where.encode()))
        if self.layers:
            factors = (1 + FACTOR_CHANGE * rng.standard_normal(self.layers)).astype(np.float32)
            return _Copy(
                [{**feed, FACTORS: factors} for feed in feeds], dict(enumerate(reference))
            )
        changed = [
            {
                name: _changed(array, rng, exact[name]) if name in exact else array
                for name, array in feed.items()
            }
            for feed, exact in zip(feeds, self._exact(where, feeds), strict=True)
        ]
        return _Copy(changed, {})

    def _exact(
        self, where: SampleSet, feeds: Sequence[Sample]
    ) -> Sequence[Mapping[str, LowType | None]]:
        """Return the inputs of each feed that change, with the 16-bit type that they are exact in.

        All copies of a set ask for the same, which takes longer than a copy.
        """
        latest, exact = self._exact_types
        if latest != where:
            exact = [
                {name: _exact_in(a, self.half) for name, a in feed.items() if _changes(a)}
                for feed in feeds
            ]
            # In one, as above.
            self._exact_types = where, exact
        return exact

    def _refer(self, copy: "_Copy", places: Sequence[int]) -> None:
        """Compute the FP32 outputs of the samples at these places of a copy."""
        feeds = [copy.feeds[place] for place in places]
        try:
            outputs = [*side_by_side(self.refer, feeds, self.at_once)]
        except RuntimeError as error:  # such as an index that is computed from a float
            raise InputError(
                f"FP32 does not run on a copy of the samples: {error}",
                "judge on the samples alone by --copies 0",
            ) from error
        copy.reference.update(zip(places, outputs, strict=True))


class _Copy(NamedTuple):
    """The feeds of a copy, and the reference outputs that were asked for, by place."""

    feeds: Sequence[Sample]
    reference: dict[int, Sample]


def fewer(draws: Draws, most: int) -> tuple[int, int]:
    """Return the count of at most so many draws, and of those that may fail of them.

    These shrink in proportion, rounded down: fewer copies are never more lenient.
    """
    count = min(most, draws.count)
    return count, draws.allowed * count // draws.count


def _nbytes(pair: Pair) -> int:
    return sum(array.nbytes for side in pair for one in side for array in one.values())


def copies_for(
    options: Options,
    samples: Samples,
    refer: Refers,
    *,
    emulated: bool,
    layers: int,
    at_once: int = 1,
) -> Copies | None:
    """Return the copies of a run; None where it wants none, or an engine has nothing to change.

    The other parameters are as in `Copies`.
    """
    feeds, _ = samples[SampleSet.JUDGED]
    changes = can_change(feeds)
    # An engine computes the same inputs to the same outputs: it would judge one trial many times.
    if options.copies == 0 or not (changes or emulated):
        return None
    return Copies(
        samples=samples,
        count=options.copies,
        allowed=options.copies_failing,
        refer=refer,
        rest=refer.rest,
        seed=options.seed,
        layers=0 if changes else layers,
        half=LOW_TYPES.get(options.low, FP16),
        at_once=at_once,
    )


def can_change(feeds: Sequence[Sample]) -> bool:
    """Tell whether any input is a float that may change."""
    return any(_changes(array) for feed in feeds for array in feed.values())


def _changes(array: NDArray[Any]) -> bool:
    """Tell whether an input has values to change: masks are exact, of 0, 1, the lowest, -inf."""
    if array.dtype.kind != "f":
        return False
    exact = np.isin(array, (0, 1, np.finfo(array.dtype).min)) | ~np.isfinite(array)
    return not bool(exact.all())


def _exact_in(array: NDArray[Any], half: LowType) -> LowType | None:
    """Return the 16-bit type that holds an input's values exactly, None where none does."""
    # An interface may round to another 16-bit type than the layers do.
    kinds = dict.fromkeys((half, *LOW_TYPES.values()))
    return next((kind for kind in kinds if _share_exact(array, kind) >= _MOSTLY_EXACT), None)


def _changed(array: NDArray[Any], rng: np.random.Generator, exact: LowType | None) -> NDArray[Any]:
    changed = moved(array, rng, CHANGE if exact is None else 2.0 ** (1 - exact.digits))
    most = np.finfo(array.dtype).max if exact is None else exact.largest
    # A mask of -inf, or a NaN that stands for what is not known, is no value that moves.
    np.clip(changed, -most, most, out=changed, where=np.isfinite(changed))
    stored = array.dtype if exact is None else exact.numpy_type
    return changed.astype(stored).astype(array.dtype)


def moved(array: NDArray[Any], rng: np.random.Generator, change: float) -> NDArray[np.float64]:
    """Return an array of the same shape, each element changed by about that share."""
    # numpy makes a scalar of the product of arrays without dimensions, and no session takes one.
    return np.asarray(array * (1 + change * rng.standard_normal(array.shape)))


def _share_exact(array: NDArray[Any], half: LowType) -> float:
    """Return the share of an input's values, but for zeros, that the 16-bit type holds exactly."""
    values = array[np.isfinite(array) & (array != 0)]
    with np.errstate(over="ignore"):
        return float((values.astype(half.numpy_type).astype(array.dtype) == values).mean())


def range_by_type(array: NDArray[np.generic]) -> tuple[float, float] | None:
    """Return the range that a data type suggests: that of 8-bit integers; None for others."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 1:
        return None
    limits = np.iinfo(str(array.dtype))
    return float(limits.min), float(limits.max)


def at_ends(feeds: Sequence[Sample], name: str, ends: tuple[float, float]) -> list[Sample]:
    """Return samples with an input's largest value at the upper end, and its least at the lower.

    All its values move by the same, within the range: positions stay as far apart.
    """
    variants: list[Sample] = []
    for feed in feeds:
        array = feed[name].astype(np.float64)
        finite = np.isfinite(array)
        if not finite.any():
            continue
        for end, edge in ((ends[1], array[finite].max()), (ends[0], array[finite].min())):
            moved = np.where(finite, np.clip(array + (end - edge), *ends), array)
            variants.append({**feed, name: moved.astype(feed[name].dtype)})
    return variants
