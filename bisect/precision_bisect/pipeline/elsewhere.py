"""An answer beside its own case: on other targets, with TF32, at the ends of its inputs."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from precision_bisect.backends.backend_plugin import choose_backend
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.backends.emulation.semantics import Semantics
from precision_bisect.backends.emulation.tf32 import is_fp32_product, is_product
from precision_bisect.exports.settings_to_deploy import library_decides, settings_to_deploy
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.typed.pinning import without_cuda_kernel
from precision_bisect.judging.inputs.copies import can_change
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline.chart import outcome_of_answer
from precision_bisect.pipeline.evaluators import evaluator, evaluators
from precision_bisect.pipeline.input_ranges import input_ranges
from precision_bisect.pipeline.plan_estimates import cost_graphs
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import telling_limit, unseen_share
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, Search
from precision_bisect.runs.results.other_targets import (
    ElsewhereSection,
    OnTargets,
    Stored,
    WithTf32,
)
from precision_bisect.search.driver import Driver
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.rounding_law import worst
from precision_bisect.search.workers import Evaluate
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import TARGETS, TF32, Inside, TargetName
from precision_bisect.trial import CaseName, Kind, Outcome, Phase, Proposal, SampleSet

# The draw of copies that an answer is judged on; searches count theirs from 1.
_DRAW = 10**6

SURE = 1.1
"""Times of the limit above which a forecast of squares that add up needs no build. A margin: real
errors with TF32 were 1.03 and 1.12 times the forecast (benchmarks/results/deploy.json)."""

_Affected = Mapping[LayerName, Inside]


def judged_elsewhere(
    prepared: Prepared,
    driver: Driver,
    answer: Plan,
    samples: SampleSet,
    own: Prepared,
    held: Outcome | None,
) -> Search[ElsewhereSection]:
    """Judge an answer in all cases beside its `own`.

    One that has TF32 there has `held` so, or feels nothing of it: other copies would only tell of
    their luck.
    """
    targets = yield from other_targets(own, driver.cases, answer, samples)
    beside, in_tf32 = own, None
    if own.case.options.engine.in_tf32:
        beside = prepared
        in_tf32 = held or outcome_of_answer(driver, answer, samples)
    form = bool(own.case.variant)
    tf32 = yield from with_tf32(beside, driver, answer, samples, in_tf32, file=prepared, form=form)
    ranges = yield from input_ranges(own, driver.cases, answer)
    return ElsewhereSection(other_targets=targets, tf32=tf32, input_ranges=ranges)


def deployed_as(prepared: Prepared, plan: Plan, *, held_in_tf32: bool = False) -> Prepared:
    """Return what predicts a plan with the settings that it is deployed with."""
    case, engine = prepared.case, engine_of(prepared, plan, held_in_tf32=held_in_tf32)
    if engine == case.options.engine:
        return prepared
    options = replace(case.options, engine=engine)
    emulator = prepared.emulator and _emulator(prepared, options, late=True)
    return replace(prepared, emulator=emulator).with_case(replace(case, options=options))


def engine_of(prepared: Prepared, plan: Plan, *, held_in_tf32: bool) -> EngineSettings:
    """Return the settings that a plan of a run is deployed with; see `settings_to_deploy`."""
    case = prepared.case
    return settings_to_deploy(
        case.options, prepared.backend.name, case.model, case.pair, plan, held=held_in_tf32
    )


def other_targets(
    prepared: Prepared, cases: Cases, plan: Plan, samples: SampleSet
) -> Search[list[OnTargets]]:
    """Judge an answer of the emulator on its samples and on copies, as other targets compute it.

    Targets that compute the model as one of the run's own, or cannot run it, are left out. On one
    that lacks a kernel of a low layer nothing is judged.
    """
    if not prepared.backend.emulated:
        return []
    affected = {
        target: Semantics(prepared.case.model, target).affected(prepared.case.pair)
        for target in TARGETS
    }
    own = [affected[target] for target in prepared.case.options.targets]
    refused = _without_kernel(prepared, plan)
    groups: list[tuple[_Affected, list[TargetName]]] = []
    for target, effects in affected.items():
        if target in prepared.unknown_to or (refused and target == "onnxruntime"):
            continue
        # Targets that round in the same places give the same outputs: one trial serves them.
        alike = next((names for other, names in groups if other == effects), None)
        if alike is not None:
            alike.append(target)
        elif effects not in own:
            groups.append((effects, [target]))
    proposals = []
    for _, targets in groups:
        in_tf32 = prepared.case.options.engine.in_tf32
        name = prepared.case.named(f"target:{targets[0]}" + f",{TF32}" * in_tf32)
        proposals.append(_beside(prepared, name, plan, samples, "the answer"))
        cases.add(proposals[-1].case, partial(_on_target, prepared, targets[0]))
    outcomes = (yield tuple(proposals)) if proposals else ()
    return refused + [
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


def _without_kernel(prepared: Prepared, plan: Plan) -> list[OnTargets]:
    """Return that ONNX Runtime on CUDA, as another target, refuses the plan; [] if it does not."""
    if "onnxruntime" in {*prepared.case.options.targets, *prepared.unknown_to}:
        return []
    reasons = list(without_cuda_kernel(prepared.case.model, prepared.case.pair, plan).values())
    if not reasons:
        return []
    count = len(reasons)
    return [OnTargets(targets=["onnxruntime"], passed=None, message=reasons[0], lack_kernel=count)]


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
    options = replace(prepared.case.options, target=target)
    return evaluator(prepared, _emulator(prepared, options, few=True))


def _emulator(prepared: Prepared, options: Options, **how: bool) -> EmulatedBackend:
    case = prepared.case
    factors = prepared.copies is not None and not can_change(case.samples)
    return forecaster(case.model, options, case.scales, factors=factors, **how)


def _made(prepared: Prepared, options: Options) -> Backend:
    """Return the backend in this process, with other options."""
    # A folder of its own: the run's backend may be building files in its own.
    work = prepared.work / "beside"
    case = prepared.case
    chosen = choose_backend(options, case.samples, work, scales=case.scales, steps=case.sets.steps)
    return chosen.make(prepared.case.model)


def _stored(prepared: Prepared, plan: Plan, affected: _Affected) -> list[Stored]:
    """Return what a target stores inside the layers that run low."""
    names = prepared.case.model.table.names
    kept = {names[i] for i in plan.indices if prepared.case.options.high == "fp32"}
    ops = {layer.name: layer.op_type for layer in prepared.case.model.table.layers}
    counts = Counter((ops[name], inside) for name, inside in affected.items() if name not in kept)
    return [Stored(op_type=op, inside=inside, layers=n) for (op, inside), n in counts.items()]


def has_tf32(prepared: Prepared) -> bool:
    """Whether FP32 in TF32 is judged beside the run's own case: the library decides on it.

    The emulator predicts that, an engine computes it. Products that no plan changes count as well.
    """
    if not library_decides(prepared.case.options, prepared.backend.name):
        return False
    model = prepared.case.model
    view, nodes = View(model), (n for g in all_graphs(model.proto.graph) for n in g.node)
    return any(is_fp32_product(node, view, model.elem_types) for node in nodes)


def products(model: Model) -> frozenset[int]:
    """Return the candidates that tensor cores multiply in TF32, if they are FP32."""
    view, numbers = View(model), {name: i for i, name in enumerate(model.table.names)}
    nodes = (node for node in model.proto.graph.node if is_product(node, view))
    return frozenset(numbers[name] for node in nodes if (name := LayerName(node.name)) in numbers)


@contextmanager
def in_tf32(prepared: Prepared, cases: Cases) -> Iterator[None]:
    """Have trials of the case `TF32` evaluated; what does is made with the first, then kept.

    An engine is built as deployed, and timed in turns with every layer high there.
    """
    with ExitStack() as stack:

        def on_engine() -> Evaluate:
            work = Path(stack.enter_context(TemporaryDirectory(dir=prepared.work)))
            engine = replace(prepared.case.options.engine, tf32="on")
            # Times on different GPUs do not compare.
            first = prepared.case.options.gpus[:1]
            options = replace(prepared.case.options, engine=engine, workers=1, gpus=first)
            here = prepared.here and _made(prepared, options)
            deployed = replace(prepared, here=here, work=work)
            deployed = deployed.with_case(replace(prepared.case, options=options))
            return stack.enter_context(evaluators(deployed, options.folder)).evaluate

        emulated = prepared.backend.emulated
        made = partial(_in_tf32, prepared) if emulated else on_engine
        cases.add(prepared.case.named(TF32), made)
        try:
            yield
        finally:
            cases.clear()


def fp32_in_tf32(prepared: Prepared, samples: SampleSet) -> Proposal:
    """Return the trial of every layer high with TF32, as deployed where an engine is built."""
    return as_deployed(
        prepared,
        _beside(
            prepared,
            prepared.case.named(TF32),
            prepared.everything,
            samples,
            "FP32 in TF32, as deployed",
        ),
    )


def fp32_as_deployed(prepared: Prepared) -> Proposal:
    """Return the trial of FP32 in TF32, with what time it takes by estimate."""
    fp32 = fp32_in_tf32(prepared, SampleSet.JUDGED)
    if prepared.backend.emulated:
        fp32 = replace(fp32, reason=f"{fp32.reason}{_estimated(prepared)}")
    return replace(fp32, phase=Phase.PREFLIGHT)


def _estimated(prepared: Prepared) -> str:
    """Say what time FP32 in TF32 takes by estimate, and every layer low."""
    graph, everything = cost_graphs(prepared), prepared.everything.kept
    costs = graph(tf32=prepared.case.options.engine.in_tf32)
    plain = costs.time(everything) or 1.0
    tf32, low = graph(tf32=True).time(everything) / plain, costs.time(()) / plain
    return f" (by estimate {tf32:.0%} of the time without it, every layer low {low:.0%})"


def error_of_fp32(prepared: Prepared, samples: SampleSet) -> Search[float]:
    """Return the error of FP32 in TF32, infinity where it fails or libraries do not run it so."""
    if not has_tf32(prepared):
        return math.inf
    (fp32,) = yield (fp32_in_tf32(prepared, samples),)
    error = worst(fp32) if fp32.passed else None
    return math.inf if error is None else error


def as_deployed(prepared: Prepared, proposal: Proposal) -> Proposal:
    """Return a trial of an engine that is built as deployed, and timed."""
    if prepared.backend.emulated:
        return proposal
    return replace(proposal, kind=Kind.REBUILD, timed=True)


def with_tf32(
    prepared: Prepared,
    driver: Driver,
    answer: Plan,
    samples: SampleSet,
    own: Outcome | None,
    *,
    file: Prepared,
    form: bool,
) -> Search[WithTf32 | None]:
    """Judge FP32 and an answer with TF32's products; None where there are none.

    On an engine the answer is timed in turns with FP32 as the library runs it. It is not built
    where it keeps all products, and its error without TF32 and that of FP32 with it add up to a
    failure. Its `own` outcome there is taken, if it has one. The emulator computes an answer
    that keeps no product as without TF32. Of a fused `form` FP32 is the `file` that was given.
    """
    if not has_tf32(prepared):
        return None
    limit = telling_limit(prepared.case.model, prepared.problem.tolerance)
    proposal = replace(fp32_in_tf32(prepared, samples), plan=answer, reason="the answer")
    with in_tf32(file, driver.cases), in_tf32(prepared, driver.cases):
        (fp32,) = yield (fp32_in_tf32(file, samples),)
        if own is not None:
            return _compared((fp32, own), limit, form=form)
        # A build costs seconds to minutes, and would show a failure that is known.
        forecast = over_the_limit(prepared, driver, answer, samples)
        if forecast is not None and driver.recorded(proposal) is None:
            return WithTf32(
                fp32_passed=None if fp32.verdict is None else fp32.passed,
                fp32_error=worst(fp32),
                fp32_unseen=unseen_share(fp32, limit),
                passed=False,
                error=forecast,
                forecast=True,
            )
        (outcome,) = yield (proposal,)
        return _compared((fp32, outcome), limit, form=form)


def over_the_limit(
    prepared: Prepared, driver: Driver, plan: Plan, samples: SampleSet
) -> float | None:
    """Return the error of a plan with TF32 by forecast, if that saves an engine's build.

    None where it may pass: where some product runs low, which TF32 does not round, and where the
    errors of FP32 in TF32 and of the plan without it do not add up to far over the limit.
    """
    limit = prepared.problem.tolerance
    rounded_alike = products(prepared.case.model) <= plan.kept
    if limit is None or prepared.backend.emulated or not rounded_alike:
        return None
    fp32 = driver.recorded(fp32_in_tf32(prepared, samples))
    # Of a variant no trial without a case tells.
    plain = None if prepared.case.variant else outcome_of_answer(driver, plan, samples)
    errors = [worst(outcome) for outcome in (fp32, plain) if outcome is not None]
    forecast = math.hypot(*(error for error in errors if error is not None))
    return forecast if forecast > SURE * limit else None


def _compared(outcomes: Sequence[Outcome], limit: float | None, *, form: bool) -> WithTf32:
    """Return what FP32 and the answer came to.

    One of a fused `form` was timed in turns with that form's FP32, which is not the file's.
    """
    fp32, outcome = outcomes
    latency, high = outcome.evidence.latency, fp32.evidence.latency
    fp32_ms, speedup = (None, None) if latency is None else (latency.baseline_ms, latency.speedup)
    if form and latency is not None:
        fp32_ms = None if high is None else high.median_ms
        speedup = fp32_ms / latency.median_ms if fp32_ms and latency.median_ms else None
    return WithTf32(
        fp32_passed=None if fp32.verdict is None else fp32.passed,
        fp32_error=worst(fp32),
        fp32_unseen=unseen_share(fp32, limit),
        fp32_ms=fp32_ms,
        passed=None if outcome.verdict is None else outcome.passed,
        error=worst(outcome),
        speedup=speedup,
        message=next((o.message for o in outcomes if o.verdict is None), ""),
    )


def _in_tf32(prepared: Prepared) -> Evaluate:
    options, heavy = prepared.case.options, prepared.heavy
    # One that is heavy is opened once the search asks for it.
    deciding = evaluator(prepared, _emulator(prepared, options, tf32=True, late=heavy))

    def evaluate(proposal: Proposal) -> Outcome:
        if heavy and isinstance(prepared.emulator, EmulatedBackend):
            # Who asks in TF32 goes on to: one of the two is open at a time.
            prepared.emulator.rest()
        if not heavy or proposal.phase not in (Phase.PREFLIGHT, Phase.EXPLANATION):
            return deciding(proposal)
        # A graph of this plan alone takes less memory and time than that of all.
        backend = _emulator(prepared, options, tf32=True, few=True)
        try:
            return evaluator(prepared, backend)(proposal)
        finally:
            backend.rest()
            prepared.refer.rest()

    return evaluate
