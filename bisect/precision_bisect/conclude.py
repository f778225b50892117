"""From what the ledger holds to the result: certificate, diagnosis, exports, figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from precision_bisect.budget import Budget
from precision_bisect.diagnosis import diagnose
from precision_bisect.driver import Driver
from precision_bisect.evidence import Evidence
from precision_bisect.exports.export import Export
from precision_bisect.exports.trtexec_names import layer_precisions
from precision_bisect.exports.write import remove_exports, write_exports
from precision_bisect.flow import Ending, Status
from precision_bisect.layer_table import LayerName
from precision_bisect.pinning import pinned_layers
from precision_bisect.plan import Plan
from precision_bisect.prepare import Prepared
from precision_bisect.result import Certificate, Diagnosis, Result
from precision_bisect.runfolder import LAYER_PRECISIONS, MIXED_MODEL, RESULT, RunFolder
from precision_bisect.trial import Kind, SampleSet

_NO_ANSWER = (Status.NOT_PRECISION, Status.INFEASIBLE)


def conclude(
    prepared: Prepared, driver: Driver, ending: Ending, budget: Budget, folder: RunFolder
) -> Result:
    """Return the result of a run that ended so, and write the run folder's files."""
    plan, samples = _answer(driver, ending)
    kept = _names(prepared, plan) if plan is not None else []
    certificate = _certificate(prepared, driver, plan, samples)
    everything = Plan.all_high(len(prepared.model.table.candidates))
    outcome = driver.outcome_of(everything if plan is None else plan, samples)
    noise = driver.outcome_of(everything, samples, Kind.REPEAT)
    final = _final(driver, plan, samples)
    string, reason, unwritten = _write_exports(prepared, plan, kept, folder)
    counted = [trial for trial in driver.trials if trial.proposal.kind is not Kind.PREDICT]
    result = Result(
        status=ending.status,
        backend=prepared.backend.name,
        emulated=prepared.backend.emulated,
        low=prepared.options.low,
        high=prepared.options.high,
        tolerance=_tolerance(prepared),
        error=outcome.error if outcome else None,
        noise_floor=noise.error if noise else None,
        layers_total=len(prepared.model.table.layers),
        candidates=len(prepared.model.table.candidates),
        kept=kept,
        layer_precisions=string,
        layer_precisions_reason=reason,
        certificate=certificate,
        trials=len(counted),
        engine_builds=0 if prepared.backend.emulated else len(counted),
        emulated_trials=len(driver.trials) - (0 if prepared.backend.emulated else len(counted)),
        wall_s=round(budget.elapsed_s(), 3),
        latency_ms=_latencies(driver, everything, final),
        honoured=final.honoured,
        honoured_layers=final.honours,
        pinned=pinned_layers(prepared.model),
        notes=[*prepared.remarks, *final.notes, *unwritten],
        diagnosis=_diagnosis(prepared, kept, certificate) if ending.status is Status.FOUND else [],
        fingerprint=prepared.fingerprint,
        message=ending.message,
        out=folder.path,
    )
    folder.write(RESULT, result.to_text())
    return result


def _write_exports(
    prepared: Prepared, plan: Plan | None, kept: Sequence[LayerName], folder: RunFolder
) -> tuple[str | None, str | None, Sequence[str]]:
    """Write the files for deployment.

    Returns trtexec's string, or why there is none, and what went wrong with the typed model, which
    is large: the answer is written all the same.
    """
    if plan is None:
        remove_exports(folder)
        return None, "the run has no answer", ()
    export = Export(
        model=prepared.model,
        kept=kept,
        low=prepared.options.low,
        settings=prepared.options.engine,
    )
    reasons = write_exports(folder, export)
    mixed, reason = reasons[MIXED_MODEL], reasons[LAYER_PRECISIONS]
    unwritten = () if mixed is None else (f"no {MIXED_MODEL}: {mixed}",)
    return layer_precisions(export) if reason is None else None, reason, unwritten


def _answer(driver: Driver, ending: Ending) -> tuple[Plan | None, SampleSet]:
    """Return the plan that the ending stands by, else the best so far, and what judged it."""
    if ending.plan is None and ending.status not in _NO_ANSWER:
        best = driver.best()
        if best is not None:
            return best.proposal.plan, best.proposal.samples
    return ending.plan, ending.samples


def _final(driver: Driver, plan: Plan | None, samples: SampleSet) -> Evidence:
    """Return what the last build of the answer showed, the one built afresh if there is one."""
    if plan is None:
        return Evidence()
    rebuilt = [driver.outcome_of(plan, where, Kind.REBUILD) for where in SampleSet]
    outcomes = [outcome for outcome in (*rebuilt, driver.outcome_of(plan, samples)) if outcome]
    return outcomes[0].evidence if outcomes else Evidence()


def _latencies(
    driver: Driver, everything: Plan, final: Evidence
) -> Mapping[str, float | None] | None:
    """Return the medians in milliseconds, None for what was not measured; None for no figure."""
    ends = [driver.outcome_of(end, SampleSet.JUDGED) for end in (everything, Plan.of(()))]
    found = [*(end.evidence.latency if end else None for end in ends), final.latency]
    if not any(found):
        return None
    medians = [latency.median_ms if latency else None for latency in found]
    return dict(zip(("all_high", "all_low", "kept"), medians, strict=True))


def _names(prepared: Prepared, plan: Plan) -> list[LayerName]:
    names = prepared.model.table.names
    return [names[i] for i in plan.indices]


def _certificate(
    prepared: Prepared, driver: Driver, plan: Plan | None, samples: SampleSet
) -> Certificate:
    """Read off the ledger which single drops from the plan were tried, and failed."""
    names = prepared.model.table.names
    checked: dict[str, float | None] = {}
    unchecked = []
    for layer in plan.indices if plan is not None else ():
        outcome = driver.outcome_of(plan.without((layer,)), samples) if plan else None
        if outcome is not None and outcome.failed:
            checked[names[layer]] = outcome.error
        else:
            unchecked.append(names[layer])
    return Certificate(
        minimal=plan is not None and not unchecked,
        checked=list(checked),
        unchecked=unchecked,
        errors=checked,
    )


def _tolerance(prepared: Prepared) -> float | Mapping[str, Any] | None:
    """Return the one limit where there is one, else all of them as the comparator lists them."""
    settings = prepared.comparator.settings()
    limit = prepared.comparator.tolerance
    limits = {value for key in ("atol", "rtol") for value in settings.get(key, {}).values()}
    if limit is None or "atol" not in settings or limits <= {limit, 0.0}:
        return limit
    return {key: settings[key] for key in ("atol", "rtol") if key in settings}


def _diagnosis(
    prepared: Prepared, kept: Sequence[str], certificate: Certificate
) -> Sequence[Diagnosis]:
    """Explain the kept layers; without an explanation the answer stands all the same."""
    try:
        return diagnose(
            prepared.model,
            kept,
            prepared.samples,
            prepared.options.low,
            certificate.errors,
            prepared.options.threads,
        )
    except (KeyboardInterrupt, RuntimeError, MemoryError):
        return ()
