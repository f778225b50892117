"""An answer on other targets than the one that it was searched for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_bisect.backends.backend_plugin import choose_backend
from precision_bisect.backends.emulation.semantics import Semantics
from precision_bisect.errors import in_words
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.runs.results.other_targets import OnTargets, Stored
from precision_bisect.settings.targets import TARGETS, Inside, TargetName
from precision_bisect.trial import Phase, Proposal, SampleSet

_DRAW = 10**6
"""The draw of copies that an answer is judged on; searches count theirs from 1."""

_Affected = Mapping[LayerName, Inside]


def other_targets(
    prepared: Prepared, plan: Plan, samples: SampleSet, *, late: bool
) -> list[OnTargets]:
    """Judge an answer of the emulator on its samples and on copies, as other targets compute it.

    Targets that compute the model as one of the run's own are left out. Nothing is evaluated if it
    is `late`. An answer stands without: whatever fails is told.
    """
    if not prepared.backend.emulated:
        return []
    options = prepared.options
    affected = {each: Semantics(prepared.model, each).affected(prepared.pair) for each in TARGETS}
    own = [affected[each] for each in options.targets]
    groups: list[tuple[_Affected, list[TargetName]]] = []
    for target, found in affected.items():
        known = next((names for other, names in groups if other == found), None)
        if known is not None:
            known.append(target)
        elif found not in own:
            groups.append((found, [target]))
    return [_judged(prepared, plan, samples, names, found, late=late) for found, names in groups]


def _judged(
    prepared: Prepared,
    plan: Plan,
    samples: SampleSet,
    targets: Sequence[TargetName],
    affected: _Affected,
    *,
    late: bool,
) -> OnTargets:
    names = prepared.model.table.names
    kept = {names[i] for i in plan.indices if prepared.options.high == "fp32"}
    ops = {layer.name: layer.op_type for layer in prepared.model.table.layers}
    counts = Counter((ops[name], each) for name, each in affected.items() if name not in kept)
    stored = [Stored(op_type=op, inside=each, layers=n) for (op, each), n in counts.items()]
    told = OnTargets(targets=targets, passed=None, stored=stored)
    if late:
        return replace(told, message="the time was up")
    options = replace(prepared.options, target=targets[0])
    proposal = Proposal(
        plan=plan,
        phase=Phase.RECHECK,
        samples=samples,
        draw=0 if prepared.copies is None else _DRAW,
    )
    try:
        chosen = choose_backend(options, prepared.samples, prepared.work, scales=prepared.scales)
        outcome = evaluator(prepared, chosen.make(prepared.model))(proposal)
    except KeyboardInterrupt:
        return replace(told, message="interrupted")
    except Exception as error:  # whatever is wrong in here, the answer stands
        return replace(told, message=in_words(error))
    finally:
        prepared.rest()
    return replace(
        told,
        passed=None if outcome.verdict is None else outcome.passed,
        error=outcome.error,
        stability=outcome.evidence.stability,
        message="" if outcome.passed else outcome.message,
    )
