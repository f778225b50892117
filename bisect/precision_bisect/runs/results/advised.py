"""Advice in `result.json`, and what came of trying it."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.errors import counted
from precision_bisect.trial import Figure

ALREADY_ROUNDED = "already-rounded"
"""The id of the advice to search the model that a file was made from."""
CHOSEN_ROWS = "selection"
"""The id of the advice on rows that an operator chooses."""
EVERYWHERE = "bf16-everywhere"
"""The id of the advice to run every layer in BF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a change came to that was tried with `kept` layers, `before` without it.

    `error` is on the tolerance's scale, `on_samples` tells whether it passes on the samples that
    have judged the search. Of `variants`, which are samples that took no part and copies, so many
    have `failed`; there are none where the samples fail. `control` is the same plan unchanged.
    """

    error: Figure | None
    on_samples: bool
    kept: int
    before: int
    variants: int = 0
    failed: int = 0
    control: "Tried | None" = None

    @property
    def holds(self) -> bool:
        """Whether it passes on all that has judged it, as an answer has to."""
        return self.on_samples and not self.failed

    @property
    def idle(self) -> bool:
        """Whether the same plan holds without the change."""
        return self.control is not None and self.control.holds

    @property
    def helps(self) -> bool:
        """Whether it holds, and the same plan without the change does not."""
        return self.holds and not self.idle

    def clause(self, how: str = "applied") -> str:
        """Return what to append to the evidence of a change that was made to a copy."""
        return f"; {how}, with {self.kept} kept instead of {counted(self.before, 'layer')}: {self}"

    def __str__(self) -> str:
        control = "" if self.control is None else f"; without it {self.control}"
        return f"{self.outcome}{control}"

    @property
    def outcome(self) -> str:
        """The error and the verdict, in words."""
        figure = "no figure" if self.error is None else f"error {self.error:.3g}"
        if not self.on_samples:
            return f"{figure}, which fails"
        if self.failed:
            where = f"fails on {self.failed} of {counted(self.variants, 'variant')}"
            return f"{figure}: passes on your samples, {where}"
        also = f", on {counted(self.variants, 'variant')}, too" if self.variants else ""
        return f"{figure}, which passes{also}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Something to change instead of keeping layers, from `diagnosis.json`.

    `passed` tells that the run has tried it, and that it helps. `layers` are the kept ones that it
    is for.
    """

    id: str
    title: str
    evidence: str
    passed: bool
    layers: Sequence[str] = ()
    tried: Tried | None = None
