"""What judges advice beside the samples: samples that took no part in the search, and copies.

How much of that is run is counted, so that no machine's speed decides.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from precision_bisect.judging.inputs.copies import FACTORS, Copies, Pair, Refers
from precision_bisect.protocols import Sample
from precision_bisect.trial import SampleSet

COPIES_PER_CHANGE = 8
"""Copies that judge one change, at most: half of an answer's. A bound on inferences."""
FEWEST_VARIANTS = 2
"""Variants that judge a change however late it is. Half and double change nothing in
benchmarks/constants.py."""


@dataclass(slots=True, kw_only=True)
class Allowance:
    """The inferences that are left for trying advice: counted, so that no machine's speed decides.

    Only where the user limits the time they end `until` then, by `time.monotonic`, too.
    """

    inferences: float = math.inf
    until: float = math.inf

    @property
    def spent(self) -> bool:
        """Whether nothing more may be tried."""
        return self.inferences <= 0 or time.monotonic() > self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Samples that took no part, with their reference outputs, and `copies`, None for none.

    All of them may fail: how many do is told. There are no further ones once the `allowance` is
    spent, of which each of `samples` takes one inference before. `refer` computes the reference of
    a model that has another one.
    """

    unseen: tuple[Sequence[Sample], Sequence[Sample]] = ((), ())
    copies: Copies | None = None
    allowance: Allowance = field(default_factory=Allowance)
    samples: int = 0
    refer: Refers | None = None

    def of_model(self, samples: int, layers: int, refer: Refers | None) -> "Variants":
        """Return the variants of so many samples for a model of so many layers."""
        copies = self.copies
        if copies is not None and (copies.layers or refer):
            of_layers = layers if copies.layers else 0
            copies = replace(copies, layers=of_layers, refer=refer or copies.refer)
        return replace(self, copies=copies, samples=samples, refer=refer)

    @property
    def factors(self) -> bool:
        """Whether copies change what layers compute instead of the inputs."""
        return self.copies is not None and self.copies.layers > 0

    @property
    def count(self) -> int:
        """How many there are, by what is left of the allowance before the samples are judged."""
        sizes = self._sizes
        left = self.allowance.inferences - self.samples
        for number, size in enumerate(sizes):
            if number >= FEWEST_VARIANTS and (left <= 0 or self.allowance.spent):
                return number
            left -= size
        return len(sizes)

    @property
    def allowed(self) -> int:
        return self.count

    @property
    def _sizes(self) -> Sequence[int]:
        """The samples of each variant."""
        copies = 0 if self.copies is None else min(COPIES_PER_CHANGE, self.copies.count)
        return [1] * len(self.unseen[0]) + [self.samples] * copies

    def make(
        self, where: SampleSet, draw: int, number: int, places: Sequence[int] | None = None
    ) -> Pair:
        """Return the feeds of one variant, and their reference outputs.

        `places` are as in `Copies.make`.
        """
        unseen = len(self.unseen[0])
        if number < unseen:
            feed, outputs = (side[number] for side in self.unseen)
            return [feed], [outputs if self.refer is None else self.refer(feed)]
        assert self.copies is not None
        feeds, reference = self.copies.make(where, draw, number - unseen, places)
        if self.refer is not None and self.copies.layers:
            plain = [{name: feed[name] for name in feed if name != FACTORS} for feed in feeds]
            reference = [*map(self.refer, plain)]
        return feeds, reference

    def rest(self) -> None:
        """Free what the references hold."""
        if self.refer is not None:
            self.refer.rest()

    def pay(self, variants: int) -> None:
        """Take from the allowance what the samples, and so many variants, were run on."""
        self.allowance.inferences -= self.samples + sum(self._sizes[:variants])
