"""From what the ledger holds to the result: certificate, diagnosis, exports, figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from precision_bisect.budget import Budget
from precision_bisect.diagnosis import diagnose
from precision_bisect.driver import Driver
from precision_bisect.exports.layer_precisions import NotWritable, write_layer_precisions
from precision_bisect.flow import Ending, Status
from precision_bisect.model.load import Model
from precision_bisect.plan import Plan
from precision_bisect.prepare import Prepared
from precision_bisect.result import Certificate, Diagnosis, Result
from precision_bisect.runfolder import LAYER_PRECISIONS, RESULT, RunFolder
from precision_bisect.trial import Phase, SampleSet, Trial

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
    noise = driver.outcome_of(everything, samples, repeat=1)
    string, reason = _layer_precisions(prepared.model, kept)
    counted = [trial for trial in driver.trials if trial.proposal.phase is not Phase.RANKING]
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
        emulated_trials=_emulated(prepared, driver.trials),
        wall_s=round(budget.elapsed_s(), 3),
        latency_ms=None,
        honoured=None,
        diagnosis=_diagnosis(prepared, kept, certificate) if ending.status is Status.FOUND else [],
        fingerprint=prepared.fingerprint,
        message=ending.message,
        out=folder.path,
    )
    _write(folder, result)
    return result


def _write(folder: RunFolder, result: Result) -> None:
    folder.write(RESULT, result.to_text())
    if result.layer_precisions is None:
        folder.remove(LAYER_PRECISIONS)
    else:
        folder.write(LAYER_PRECISIONS, result.layer_precisions)


def _answer(driver: Driver, ending: Ending) -> tuple[Plan | None, SampleSet]:
    """Return the plan that the ending stands by, else the best so far, and what judged it."""
    if ending.plan is None and ending.status not in _NO_ANSWER:
        best = driver.best()
        if best is not None:
            return best.proposal.plan, best.proposal.samples
    return ending.plan, ending.samples


def _names(prepared: Prepared, plan: Plan) -> list[str]:
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


def _emulated(prepared: Prepared, trials: Sequence[Trial]) -> int:
    if prepared.backend.emulated:
        return len(trials)
    return sum(trial.proposal.phase is Phase.RANKING for trial in trials)


def _layer_precisions(model: Model, kept: Sequence[str]) -> tuple[str | None, str | None]:
    wanted = frozenset(kept)
    for layer in model.table.candidates:
        if layer.name in wanted and not layer.named_in_model:
            return None, (
                f"layer {layer.name!r} has no name of its own in the model, so TensorRT's name "
                "for it depends on its version; give every node a unique name and run again"
            )
    others: list[str] = [layer.name for layer in model.table.layers if layer.name not in wanted]
    others += [tensor.name for tensor in model.proto.graph.initializer]
    try:
        return write_layer_precisions(kept, others), None
    except NotWritable as reason:
        return None, str(reason)


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
