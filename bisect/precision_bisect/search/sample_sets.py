"""Which samples judge plans, which rank layers, and which take no part before the end."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from precision_bisect.errors import InputError, ModelError, counted
from precision_bisect.graphs.fp32_outputs import judgeable, non_finite
from precision_bisect.judging.inputs.copies import Pair, Refers
from precision_bisect.judging.inputs.distinct import Distinct
from precision_bisect.protocols import Comparator, Judgement, JudgesEach, Sample
from precision_bisect.trial import OneByOne, SampleSet, Trial, Verdict

CHOSEN = 8
"""Samples that a search works on, at most. Of searches with 1, 2, 4 and 8 samples the answers fail
on 9, 6, 3 and 1.5% of fresh inputs; with 16 on 1.3%, at twice the time."""
POOL = 32
POOL_SHARE = 4
"""Samples that the hardest are chosen from, at most: `POOL`, or one in `POOL_SHARE` where that is
less. The others promise the more, the more there are."""
RANKING_SAMPLES = 8
"""Judging samples that rank the layers, at most, spread evenly over them. A bound on the ranking's
time, which grows with layers and samples. Half and double change nothing in
benchmarks/constants.py, whose models have few samples; half loses the example's certificate."""

LOOPS_RANKING = 2
"""The same where a sample is a loop of N inferences. The single-layer errors of two loops have a
rank correlation of 0.94 to 0.98 with those of four, on examples/closed_loop and a logistic map in
ten steps, of one 0.80 to 0.97. Single steps cost less, 0.91 to 1, and have another scale than the
end: a sampler forgets what early steps bring."""


_NAMED = (SampleSet.JUDGED, SampleSet.RANKING, SampleSet.POOL, SampleSet.HELD_OUT)


def judges_each(comparator: Comparator) -> bool:
    """Tell whether a comparator judges each sample by itself, and the worst is the verdict."""
    return isinstance(comparator, JudgesEach) and comparator.judges_each


def searched(trials: Iterable[Trial]) -> SampleSet:
    """Return the samples that a search began with."""
    judging = (trial.proposal.samples for trial in trials if trial.proposal.samples.judges)
    return next(judging, SampleSet.JUDGED)


def summed_up(
    numbers: Sequence[int], judgements: Sequence[Judgement | None]
) -> tuple[Judgement, OneByOne]:
    """Return the verdict on all samples, and on each by itself; None are those unjudged."""
    judged = {
        n: judgement
        for n, judgement in zip(numbers, judgements, strict=True)
        if judgement is not None
    }
    failed = [n for n, judgement in judged.items() if judgement.verdict is not Verdict.PASS]
    errors = [judgement.error for judgement in judged.values() if judgement.error is not None]
    return Judgement(
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        error=max(errors, default=None),
        message=f"{len(failed)} of {counted(len(judged), 'sample')} fail" if failed else "",
        dropped_nan=[*dict.fromkeys(chain.from_iterable(e.dropped_nan for e in judged.values()))],
    ), OneByOne(
        numbers=[*numbers],
        errors=[None if judgement is None else judgement.error for judgement in judgements],
        failed=failed,
        unjudged=[n for n in numbers if n not in judged],
    )


class Divided(NamedTuple):
    """The numbers of the samples that are held out, and of those that may choose."""

    held_out: Sequence[int]
    pool: Sequence[int]


def divided(new: Distinct, holdout: int, seed: int, *, each: bool) -> Divided:
    """Hold out so many distinct samples, and choose the pool; `each` may be judged alone.

    Raises InputError where all are held out.
    """
    count = len({*new.near})
    if holdout >= count:
        samples = counted(count, "sample" if count == len(new.near) else "distinct sample")
        raise InputError(
            f"--holdout {holdout} of {samples} leaves none to search with",
            "give more samples, or hold out fewer",
        )
    held_out = new.drawn(holdout, seed)
    judging = sorted({*range(len(new.near))} - {*held_out})
    return Divided(held_out, pool_of(sorted(new.of(judging)), seed) if each else judging)


def pool_of(numbers: Sequence[int], seed: int) -> list[int]:
    """Return which of these samples may choose: all of few, some at random of many.

    Nothing is known of the others, so they stay like inputs that nobody has shown.
    """
    count = len(numbers)
    if count <= CHOSEN:
        return [*numbers]
    size = max(CHOSEN, min(POOL, count // POOL_SHARE))
    return sorted(_drawn(numbers, seed)[:size])


def _drawn(numbers: Sequence[int], seed: int) -> Sequence[int]:
    count = len(numbers)
    return [numbers[place] for place in np.random.default_rng((seed, count)).permutation(count)]


@dataclass(slots=True, kw_only=True)
class SampleSets(Mapping[SampleSet, Pair]):
    """The samples of a run by their numbers, with their FP32 outputs.

    `feeds` are all, of which those `held_out` never join; they may be read from files each time
    they are asked for. `pool` are the numbers of those that may choose, whose outputs `reference`
    has. Those of the others are `given`, or `refer` computes them when they are asked for. `each`
    sample has a verdict of its own, and equal ones have it from the first of them; where a check
    judges all together, all choose. All samples are `new` unless they are not `distinct`. `steps`
    are feeds of steps where samples run in a loop.
    """

    feeds: Sequence[Sample]
    pool: Sequence[int]
    reference: Sequence[Sample]
    held_out: Sequence[int] = ()
    each: bool = True
    distinct: Distinct | None = None
    given: Sequence[Sample] | None = None
    refer: Refers | None = None
    steps: Sequence[Sample] = ()
    new: Distinct = field(init=False)
    _kept: dict[int, tuple[Sample, Sample]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.new = self.distinct or Distinct.all_of(len(self.feeds))
        for number, outputs in zip(self.pool, self.reference, strict=True):
            self._kept[number] = self.feeds[number], outputs

    def __getitem__(self, where: SampleSet) -> Pair:
        pairs = [self._pair(number) for number in self.numbers(where)]
        return [feed for feed, _ in pairs], [outputs for _, outputs in pairs]

    def __iter__(self) -> Iterator[SampleSet]:
        yield from _NAMED

    def __len__(self) -> int:
        return len(_NAMED)

    def sent(self, *, elsewhere: bool) -> "SampleSets":
        """Return what another process gets; `elsewhere` it does not see the files of samples."""
        feeds = [*self.feeds] if elsewhere else self.feeds
        return replace(self, feeds=feeds, refer=None)

    @property
    def taken(self) -> Sequence[Sample]:
        """What an engine has to take: samples, and what a loop makes of them."""
        return [*self.feeds, *self.steps] if self.steps else self.feeds

    @property
    def others(self) -> int:
        """How many samples judge that are not in the pool."""
        return len({*self._without_repeats(self.judging_numbers)} - {*self.pool})

    @property
    def judging_numbers(self) -> Sequence[int]:
        """The numbers of the samples that are not held out."""
        held_out = {*self.held_out}
        return [number for number in range(len(self.feeds)) if number not in held_out]

    @property
    def judging(self) -> Sequence[Sample]:
        """The feeds that are not held out, which calibrate."""
        if not self.held_out:
            return self.feeds
        return [self.feeds[number] for number in self.judging_numbers]

    def unseen(self, most: int) -> Pair:
        """Return so many samples at most that choose nothing, those held out first."""
        others = (n for n in self.judging_numbers if n not in self._kept)
        numbers = islice(self._without_repeats(chain(self.held_out, others)), most)
        pairs = [self._pair(number) for number in numbers]
        return [feed for feed, _ in pairs], [outputs for _, outputs in pairs]

    def numbers(self, where: SampleSet) -> Sequence[int]:
        """Return the numbers of a set's samples."""
        if where == SampleSet.HELD_OUT:
            return [*self._without_repeats(self.held_out)]
        if where == SampleSet.RANKING:
            # Rounded up, so that no more than the bound are taken.
            most = LOOPS_RANKING if self.steps else RANKING_SAMPLES
            return self.pool[:: max(1, -(-len(self.pool) // most))]
        listed = where.numbers
        if listed is None:
            return self.pool
        if not where.singly:
            return listed
        chosen = {*listed}
        return [n for n in self._without_repeats(self.judging_numbers) if n not in chosen]

    def _without_repeats(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield those of these samples that are equal to no earlier one, if each is judged."""
        return (n for n in numbers if not self.each or self.new.equal[n] == n)

    def single(self, number: int) -> "tuple[Sample, Sample | None]":
        """Return a sample and its FP32 outputs, None where there are none to judge by."""
        if number in self._kept:
            return self._kept[number]
        feed = self.feeds[number]
        try:
            outputs = self._outputs(number, feed)
        except (RuntimeError, ModelError):  # an index beyond the end, or nothing that came out
            return feed, None
        return feed, None if non_finite([outputs]) else outputs

    def _pair(self, number: int) -> tuple[Sample, Sample]:
        # What has joined is asked for in every trial from then on.
        if number not in self._kept:
            feed = self.feeds[number]
            self._kept[number] = feed, self._outputs(number, feed)
        return self._kept[number]

    def _outputs(self, number: int, feed: Sample) -> Sample:
        if self.given is not None:
            return judgeable(self.given[number], number)
        if self.refer is None:
            raise ValueError(f"nothing computes the FP32 outputs of sample {number}")
        return judgeable(self.refer(feed), number)


def with_something(sets: SampleSets, judged: Collection[str], seed: int) -> SampleSets:
    """Return the samples with a pool in which one of the judged outputs is not empty.

    Where it has none, further samples are drawn until one has. All of them join, so that the rest
    stay like inputs that nobody has shown. Raises InputError where all outputs are empty.
    """

    def empty(outputs: Sample) -> bool:
        return not any(outputs[name].size for name in judged)

    pool, references = [*sets.pool], [*sets.reference]
    if not all(map(empty, references)):
        return sets
    # In the order of a draw by the seed: a resumed run takes the same ones.
    for number in _drawn(sorted(sets.new.of(sets.judging_numbers)), seed):
        _, outputs = (None, None) if number in sets.pool else sets.single(number)
        if outputs is None:
            continue
        pool.append(number)
        references.append(outputs)
        if not empty(outputs):
            return replace(sets, pool=pool, reference=references)
    shapes = ", ".join(f"{name!r} {[*references[0][name].shape]}" for name in judged)
    raise InputError(
        f"nothing can be judged: the outputs of all {len(pool)} samples are empty, {shapes}",
        "give inputs in which the model finds something",
    )
