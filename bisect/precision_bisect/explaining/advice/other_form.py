"""A search inside of advice: how many layers another form of the model needs, by the emulator."""

import time
from dataclasses import replace
from functools import partial

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.out_of_range import out_of_range
from precision_bisect.graphs.lowtypes import KINDS, QUANTIZED
from precision_bisect.options import DEFAULT_STRATEGY
from precision_bisect.plan import Plan
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import BackendFailure, Problem
from precision_bisect.runs.results.advised import Tried
from precision_bisect.search.combinators import Batch, Outcomes, feed
from precision_bisect.search.evaluation import judged_once
from precision_bisect.trial import Outcome, TrialStatus

MOST_SEARCHED = 256
"""Candidates of a form that is searched, at most. A limit of what the user waits."""


class _Late(Exception):
    """The time for advice is over."""


def searched(case: DiagnosedModel, change: ModelChange) -> Tried | None:
    """Search a changed model by the default strategy; return what its answer comes to.

    `before` is the number of its candidates then. None where it cannot be tried, or takes longer
    than advice may take.
    """
    model, reference = change.model, change.reference
    if model is None or reference is None or case.on_ladder or case.pair.low in QUANTIZED:
        return None
    names = model.table.names
    if not 0 < len(names) <= MOST_SEARCHED:
        return None
    try:
        backend = EmulatedBackend(
            model,
            case.pair.low,
            case.threads,
            case.pair.high,
            case.scales,
            targets=case.targets,
            whole=True,
        )

        def judged(plan: Plan) -> Outcome:
            if time.monotonic() > case.variants.until:
                raise _Late
            try:
                told = judged_once(backend, plan, case.samples, reference, case.comparator)
            except BackendFailure as failure:
                return failure.outcome
            return Outcome(
                status=TrialStatus.FINISHED,
                verdict=told.verdict,
                error=told.error,
                message=told.message,
            )

        def answer(batch: Batch) -> Outcomes:
            return tuple(judged(each.plan) for each in batch)

        plan = Plan.of(())
        if not judged(plan).passed:
            plan = feed(load_strategy(DEFAULT_STRATEGY).search(_problem(case, change)), answer)
    except (PrecisionBisectError, _Late):
        return None
    tried = case.tried([names[i] for i in plan.indices], change)
    return None if tried is None else replace(tried, before=len(names))


def _problem(case: DiagnosedModel, change: ModelChange) -> Problem:
    assert change.model is not None
    model, threads = change.model, case.threads
    return Problem(
        names=model.table.names,
        modules=model.table.modules,
        tolerance=case.comparator.tolerance,
        unit=KINDS[case.pair.low].unit,
        beyond_range=partial(
            out_of_range, model, case.pair, case.samples, (), threads, targets=case.targets
        ),
    )
