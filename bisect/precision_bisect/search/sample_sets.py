"""Which samples judge plans, which rank layers, and which are held out for the end."""

from collections.abc import Sequence

from precision_bisect.inputs.copies import Samples
from precision_bisect.protocols import Sample
from precision_bisect.trial import SampleSet

RANKING_SAMPLES = 8
"""Judging samples that rank the layers, at most, spread evenly over them. A bound on the ranking's
time, which grows with layers and samples; nothing was measured."""


def sample_sets(samples: Sequence[Sample], reference: Sequence[Sample], judging: int) -> Samples:
    """Return feeds and reference outputs of each sample set; the first `judging` ones judge."""
    judged = range(judging)
    # Rounded up, so that no more than the bound are chosen.
    step = max(1, -(-judging // RANKING_SAMPLES))
    chosen = {
        SampleSet.JUDGED: judged,
        SampleSet.RANKING: judged[::step],
        SampleSet.HELD_OUT: range(judging, len(samples)),
        SampleSet.ALL: range(len(samples)),
    }
    return {
        name: ([samples[i] for i in places], [reference[i] for i in places])
        for name, places in chosen.items()
    }
