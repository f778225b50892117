"""What the emulator says of an answer on targets that it was not searched for."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.runs.typed_json import Count
from precision_bisect.settings.targets import Inside, TargetName
from precision_bisect.trial import Figure, Stability


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a target stores inside an operator, and in how many of the layers that run low."""

    op_type: str
    inside: Inside
    layers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTargets:
    """The answer on `targets` that compute the model alike, and in another way than its own.

    `passed` is None where it was not evaluated; `message` says why. `error` and `stability` are as
    in `Result`, on all samples and on copies of them.
    """

    targets: Sequence[TargetName]
    passed: bool | None
    error: Figure | None = None
    stability: Stability | None = None
    stored: Sequence[Stored] = ()
    message: str = ""
