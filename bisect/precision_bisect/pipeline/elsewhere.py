"""An answer beside its own case: on other targets, with TF32, at the ends of its inputs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from precision_bisect.backends.backend_plugin import choose_backend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.backends.emulation.semantics import Semantics
from precision_bisect.backends.emulation.tf32 import is_product
from precision_bisect.graphs.node_views import View
from precision_bisect.judging.inputs.copies import can_change, fewer
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import evaluator, evaluators
from precision_bisect.pipeline.input_ranges import input_ranges
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, Search
from precision_bisect.runs.results.other_targets import InputRange, OnTargets, Stored, WithTf32
from precision_bisect.search.evaluation import CURVE_COPIES, Evaluator
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.rounding_law import worst
from precision_bisect.settings.targets import TARGETS, Inside, TargetName
from precision_bisect.trial import CaseName, Kind, Outcome, Phase, Proposal, SampleSet

_DRAW = 10**6
"""The draw of copies that an answer is judged on; searches count theirs from 1."""

_Affected = Mapping[LayerName, Inside]


class Elsewhere(NamedTuple):
    """What an answer comes to on other targets, with TF32, and at the ends of inputs' ranges."""

    targets: Sequence[OnTargets]
    tf32: WithTf32 | None
    ranges: Sequence[InputRange]


def judged_elsewhere(
    prepared: Prepared, cases: Cases, answer: Plan, samples: SampleSet
) -> Search[Elsewhere]:
    """Judge an answer in all cases beside the run's own."""
    targets = yield from other_targets(prepared, cases, answer, samples)
    tf32 = yield from with_tf32(prepared, cases, answer, samples)
    return Elsewhere(targets, tf32, (yield from input_ranges(prepared, cases, answer)))


def other_targets(
    prepared: Prepared, cases: Cases, plan: Plan, samples: SampleSet
) -> Search[list[OnTargets]]:
    """Judge an answer of the emulator on its samples and on copies, as other targets compute it.

    Targets that compute the model as one of the run's own, or cannot run it, are left out.
    """
    if not prepared.backend.emulated:
        return []
    affected = {
        target: Semantics(prepared.model, target).affected(prepared.pair) for target in TARGETS
    }
    own = [affected[target] for target in prepared.options.targets]
    groups: list[tuple[_Affected, list[TargetName]]] = []
    for target, effects in affected.items():
        if target in prepared.unknown_to:
            continue
        alike = next((names for other, names in groups if other == effects), None)
        if alike is not None:
            alike.append(target)
        elif effects not in own:
            groups.append((effects, [target]))
    proposals = []
    for _, targets in groups:
        proposals.append(_beside(prepared, f"target:{targets[0]}", plan, samples, "the answer"))
        cases.add(proposals[-1].case, partial(_on_target, prepared, targets[0]))
    outcomes = (yield tuple(proposals)) if proposals else ()
    return [
        OnTargets(
            targets=targets,
            stored=_stored(prepared, plan, effects),
            passed=None if outcome.verdict is None else outcome.passed,
            error=outcome.error,
            stability=outcome.evidence.stability,
            message="" if outcome.passed else outcome.message,
        )
        for (effects, targets), outcome in zip(groups, outcomes, strict=True)
    ]


def _beside(
    prepared: Prepared, case: CaseName, plan: Plan, samples: SampleSet, what: str
) -> Proposal:
    """Return the trial of a plan on samples and copies in another case."""
    return Proposal(
        plan=plan,
        phase=Phase.EXPLANATION,
        samples=samples,
        draw=0 if prepared.copies is None else _DRAW,
        case=case,
        reason=what,
    )


def _on_target(prepared: Prepared, target: TargetName) -> Evaluator:
    options = replace(prepared.options, target=target)
    return evaluator(prepared, _emulator(prepared, options, few=True))


def _emulator(prepared: Prepared, options: Options, **how: bool) -> Backend:
    factors = prepared.copies is not None and not can_change(prepared.samples)
    return forecaster(prepared.model, options, prepared.scales, factors=factors, **how)


def _made(prepared: Prepared, options: Options) -> Backend:
    """Return the backend in this process, with other options."""
    # A folder of its own: the run's backend may be building files in its own.
    work = prepared.work / "beside"
    chosen = choose_backend(options, prepared.samples, work, scales=prepared.scales)
    return chosen.make(prepared.model)


def _stored(prepared: Prepared, plan: Plan, affected: _Affected) -> list[Stored]:
    """Return what a target stores inside the layers that run low."""
    names = prepared.model.table.names
    kept = {names[i] for i in plan.indices if prepared.options.high == "fp32"}
    ops = {layer.name: layer.op_type for layer in prepared.model.table.layers}
    counts = Counter((ops[name], inside) for name, inside in affected.items() if name not in kept)
    return [Stored(op_type=op, inside=inside, layers=n) for (op, inside), n in counts.items()]


_TF32: CaseName = "tf32"


def with_tf32(
    prepared: Prepared, cases: Cases, answer: Plan, samples: SampleSet
) -> Search[WithTf32 | None]:
    """Judge FP32 and an answer with TF32's products; None where there are none.

    The emulator predicts them. ONNX Runtime on CUDA computes them, and is timed: the answer in
    turns with FP32 as the library runs it.
    """
    view, engine = View(prepared.model), prepared.options.engine
    products = any(is_product(node, view) for node in prepared.model.proto.graph.node)
    if prepared.options.high != "fp32" or not products:
        return None
    everything = _beside(prepared, _TF32, prepared.everything, samples, "every layer high")
    proposals = everything, replace(everything, plan=answer, reason="the answer")
    if prepared.backend.emulated:
        cases.add(_TF32, partial(_in_tf32, prepared))
        return _told_of((yield proposals))
    if prepared.backend.name != "onnxruntime" or engine.tf32 or engine.ort_options:
        return None
    # Built and timed as the library runs it.
    timed = tuple(replace(entry, kind=Kind.REBUILD, timed=True) for entry in proposals)
    options = replace(prepared.options, engine=replace(engine, tf32=True), workers=1)
    here = prepared.here and _made(prepared, options)
    in_tf32 = replace(prepared, options=options, here=here)
    with evaluators(in_tf32, options.folder) as workers:
        cases.add(_TF32, lambda: workers.evaluate)
        outcomes = yield timed
        cases.clear()
    return _told_of(outcomes)


def _told_of(outcomes: Sequence[Outcome]) -> WithTf32:
    """Return what FP32 and the answer came to."""
    fp32, outcome = outcomes
    latency = outcome.evidence.latency
    return WithTf32(
        fp32_passed=None if fp32.verdict is None else fp32.passed,
        fp32_error=worst(fp32),
        fp32_ms=None if latency is None else latency.baseline_ms,
        passed=None if outcome.verdict is None else outcome.passed,
        error=worst(outcome),
        speedup=None if latency is None else latency.speedup,
        message=next((o.message for o in outcomes if o.verdict is None), ""),
    )


def _in_tf32(prepared: Prepared) -> Evaluator:
    copies = prepared.copies
    backend = _emulator(prepared, prepared.options, tf32=True)
    if copies is not None:
        # This decides nothing, and is to cost little.
        count, allowed = fewer(copies, CURVE_COPIES)
        copies = replace(copies, count=count, allowed=allowed)
    return replace(evaluator(prepared, backend), copies=copies)
