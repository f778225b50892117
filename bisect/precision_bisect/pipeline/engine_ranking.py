"""Ranks layers by what a run's own engine shows of its tensors, at the price of a few builds."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from precision_bisect.backends.emulation.engine_errors import EngineErrors, look_into
from precision_bisect.backends.emulation.error_forecasts import ErrorForecasts
from precision_bisect.backends.inspection.shown_tensors import ShownTensor, shown_by
from precision_bisect.errors import PrecisionBisectError, RefusedError, RunFolderError, shortened
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.workers import Evaluate
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

LOOKER = "looker"
"""What files of the process are called that builds the engines to look into."""


@dataclass(slots=True, kw_only=True)
class RankedByEngine:
    """Evaluates the trials of a ranking by the errors of an engine, all others by `otherwise`.

    The engine is built and looked into with the first trial. Where that fails, `otherwise` ranks,
    too, and the notes of its outcomes say why. Several threads may call it.
    """

    prepared: Prepared
    otherwise: Evaluate
    _lock: Lock = field(init=False, default_factory=Lock)
    _by_samples: dict[SampleSet, Evaluate] = field(init=False, default_factory=dict)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal. Raises what `otherwise` does, and RunFolderError."""
        ranks = proposal.kind is Kind.PREDICT and proposal.phase is Phase.RANKING
        if not ranks or proposal.samples.singly or proposal.case:
            return self.otherwise(proposal)
        with self._lock:
            if proposal.samples not in self._by_samples:
                self._by_samples[proposal.samples] = self._looked(proposal.samples)
        return self._by_samples[proposal.samples](proposal)

    def _looked(self, samples: SampleSet) -> Evaluate:
        case = self.prepared.case
        feeds, _ = case.sets[samples]
        try:
            errors = self._errors(feeds)
            forecasts = ErrorForecasts(case.model, errors, feeds, case.options.emulator_threads)
        # Ranking is advice to the search: without it the emulator's serves.
        except (PrecisionBisectError, RuntimeError) as error:
            return self._noting(shortened(str(error)))
        try:
            errors.tensors.save(case.options.folder)
        except OSError as error:
            raise RunFolderError(
                f"cannot write into {case.options.folder}: {error.strerror}",
                "free some space, then go on with --resume",
            ) from error
        by_engine = Evaluator(
            backend=forecasts,
            emulator=forecasts,
            comparator=case.comparator,
            samples=case.sets,
            keep=case.options.folder,
        )

        def evaluate(proposal: Proposal) -> Outcome:
            return (by_engine if forecasts.tells(proposal.plan) else self.otherwise)(proposal)

        return evaluate

    def _errors(self, feeds: Sequence[Sample]) -> EngineErrors:
        """Return what the engine's parts add. Raises as `look_into` does."""
        prepared, case = self.prepared, self.prepared.case
        low, threads = LOW_TYPES[case.options.low], case.options.threads
        here = prepared.here
        if here is not None:
            return look_into(case.model, low, feeds, partial(shown_by, here), threads)
        # Imported here: loky and psutil are for runs that need them.
        from precision_bisect.execution import child
        from precision_bisect.execution.child import Death
        from precision_bisect.execution.process_evaluator import slots_in
        from precision_bisect.execution.slot import Limits

        one = replace(case.options, workers=1, gpus=case.options.gpus[:1])
        with ExitStack() as stack:
            slot = slots_in(prepared.work, one, LOOKER)[0]
            stack.callback(slot.end)
            prepared.spec.save(slot.spec)

            def show(plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
                limits = Limits.of(case.options)
                return slot.call_bare(child.show, slot.spec, plan, feeds, limits=limits)

            try:
                return look_into(case.model, low, feeds, show, threads)
            except Death as death:
                raise RefusedError(death.outcome.message, "leave out --rank-by") from death

    def _noting(self, why: str) -> Evaluate:
        note = f"the emulator ranks, since the engine shows no tensors: {why}"

        def evaluate(proposal: Proposal) -> Outcome:
            outcome = self.otherwise(proposal)
            evidence = replace(outcome.evidence, notes=(*outcome.evidence.notes, note))
            return replace(outcome, evidence=evidence)

        return evaluate
