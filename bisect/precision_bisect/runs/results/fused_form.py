"""What a result says of the model with its norms put together, tried beside the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure, Stability


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedForm:
    """The model with so many `operators` put together, by type, whose pieces the file has.

    `model` is the digest of its file, `candidates` are its layers. With every layer low the error
    is `all_low`. The best plan found that holds keeps `kept`, by names of this form; None where
    none held. `error` and `stability` are its, as of a plan to deploy. `pinned` layers cannot run
    low, with the reason.
    """

    model: str
    operators: Mapping[str, Count]
    candidates: Count
    all_low: Figure | None = None
    kept: Sequence[str] | None = None
    error: Figure | None = None
    stability: Stability | None = None
    pinned: Mapping[str, str] = field(default_factory=dict)
