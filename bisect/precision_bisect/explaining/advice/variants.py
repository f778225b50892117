"""What judges advice beside the samples: samples that took no part in the search, and copies."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from precision_bisect.judging.inputs.copies import Copies, Pair
from precision_bisect.protocols import Sample
from precision_bisect.trial import SampleSet

COPIES_PER_CHANGE = 8
"""Copies that judge one change, at most: half of an answer's. A bound on inferences."""
FEWEST_VARIANTS = 2
"""Variants that judge a change however late it is. Half and double change nothing in
benchmarks/constants.py."""
ADVICE_DRAW = 2 * 10**6
"""The draw of copies that advice is judged on; searches count theirs from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Samples that took no part, with their reference outputs, and `copies`, None for none.

    No further ones are made after `until`, by `time.monotonic`.
    """

    unseen: Pair = ((), ())
    copies: Copies | None = None
    until: float = float("inf")

    @property
    def factors(self) -> bool:
        """Whether copies change what layers compute instead of the inputs."""
        return self.copies is not None and self.copies.layers > 0

    def pairs(
        self, layers: int, refer: Callable[[Sample], Sample] | None = None
    ) -> Iterator[tuple[Sequence[Sample], Sequence[Sample]]]:
        """Yield feeds and reference outputs of each variant for a model of so many layers.

        A changed model that has a reference of its own computes it by `refer`.
        """
        for number, (feed, known) in enumerate(zip(*self.unseen, strict=True)):
            if self._late(number):
                return
            yield [feed], [known if refer is None else refer(feed)]
        if self.copies is None:
            return
        before = len(self.unseen[0])
        copies = self._of(layers, refer)
        for number in range(min(COPIES_PER_CHANGE, self.copies.count)):
            if self._late(before + number):
                return
            feeds, reference = copies.make(SampleSet.JUDGED, ADVICE_DRAW, number)
            yield feeds, [refer(each) for each in feeds] if refer and copies.layers else reference

    def _of(self, layers: int, refer: Callable[[Sample], Sample] | None) -> Copies:
        assert self.copies is not None
        of_layers = layers if self.copies.layers else 0
        return replace(self.copies, layers=of_layers, refer=refer or self.copies.refer)

    def _late(self, number: int) -> bool:
        return number >= FEWEST_VARIANTS and time.monotonic() > self.until
