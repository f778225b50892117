"""Which samples judge, which rank, and which are held out."""

from collections.abc import Sequence

from precision_bisect.inputs.copies import Samples
from precision_bisect.protocols import Sample
from precision_bisect.trial import SampleSet

RANKING_SAMPLES = 8
"""So many of the judging samples, spread evenly, rank the layers."""


def sample_sets(samples: Sequence[Sample], reference: Sequence[Sample], judging: int) -> Samples:
    """Return feeds and reference outputs of each sample set; the first `judging` ones judge."""
    judged = range(judging)
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
