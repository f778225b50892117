"""A comparator in one file: the error of a row, as a share of the row's own L2 norm.

`pip install ./examples/row_norm` makes it `--metric row-norm`. It suits embeddings, where a small
vector that is wrong altogether would drown in the norm of a batch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.settings.sample_options import DEFAULT_TOLERANCE
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNorm:
    """Judges by the worst row of all samples; rows lie along the last axis, (..., features)."""

    tolerance: float

    def settings(self) -> Mapping[str, Any]:
        """Return the limit, under the comparator's name."""
        return {"metric": "row-norm", "tolerance": self.tolerance}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples; NaN and Inf fail."""
        errors = {
            f"output {name!r}, sample {number}": worst_row(found[name], exact[name])
            for number, (found, exact) in enumerate(zip(outputs, reference, strict=True))
            for name in exact
        }
        where = max(errors, key=lambda each: errors[each])
        passed = errors[where] <= self.tolerance
        return Judgement(
            verdict=Verdict.PASS if passed else Verdict.FAIL, error=errors[where], message=where
        )


def worst_row(found: NDArray[Any], exact: NDArray[Any]) -> float:
    """Return the largest error of a row; inf where shapes differ, or a value is not finite."""
    if found.shape != exact.shape or not np.isfinite(found).all():
        return np.inf
    wide = np.atleast_1d(exact).astype(np.float64)
    off = np.linalg.norm(np.atleast_1d(found) - wide, axis=-1)
    norms = np.linalg.norm(wide, axis=-1)
    # A row of zeros has no size to measure by: anything but zeros is wrong.
    shares = np.divide(off, norms, out=np.where(off > 0, np.inf, 0.0), where=norms > 0)
    return float(shares.max(initial=0.0))


def row_norm(options: Options, outputs: Sequence[str], classes: Collection[str]) -> RowNorm:
    """Make the comparator; see `MakeComparator`. Raises UsageError for what is no single limit."""
    limit = DEFAULT_TOLERANCE if options.tol is None else options.tol
    if not isinstance(limit, int | float) or not limit > 0:
        raise UsageError("--metric row-norm has one limit above zero", "give one number to --tol")
    return RowNorm(tolerance=float(limit))
