"""What is made of a comparator's error that is no number."""

import math
from dataclasses import replace

from precision_bisect.protocols import Judgement
from precision_bisect.trial import Verdict


def numbered(judgement: Judgement) -> Judgement:
    """Return the judgement; one whose error is NaN fails, whatever its verdict, with infinity.

    NaN is neither within nor above any tolerance, so searches could make nothing of it, and a pass
    beside it says that the comparator did not notice.
    """
    if judgement.error is None or not math.isnan(judgement.error):
        return judgement
    return replace(
        judgement,
        verdict=Verdict.FAIL,
        error=math.inf,
        message=judgement.message or "the comparator's error is NaN",
    )
