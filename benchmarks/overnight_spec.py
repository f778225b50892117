"""An evaluator that says how long it took, in whatever process it is."""

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Made
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.trial import Outcome, Proposal


@dataclass(slots=True, kw_only=True)
class Timed(Evaluator):
    """Puts the seconds of the evaluation alone into the outcome."""

    @classmethod
    def of(cls, evaluator: Evaluator) -> Self:
        """Return the same evaluator, timed."""
        return cls(**_initial(evaluator))

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal."""
        begun = time.perf_counter()
        outcome = Evaluator.__call__(self, proposal)
        return replace(outcome, wall_s=time.perf_counter() - begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSpec(EvaluatorSpec):
    """Makes a timed evaluator in another process."""

    @classmethod
    def of(cls, spec: EvaluatorSpec) -> Self:
        """Return the same spec, timed."""
        return cls(**_initial(spec))

    def evaluator(self, work: Path, looked: Made | None = None) -> Evaluator:
        """Return the evaluator."""
        return Timed.of(EvaluatorSpec.evaluator(self, work, looked))


def _initial(record: Evaluator | EvaluatorSpec) -> dict[str, Any]:
    """Return what a record was made of."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.init}
