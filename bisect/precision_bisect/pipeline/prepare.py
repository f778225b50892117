"""Everything of a run that must exist before its first trial: model, judge, strategy, backend.

Nothing is written before all of it has been checked.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import (
    LAYER_BYTES,
    choose_forecasts,
    choose_target,
    forecaster,
)
from precision_bisect.backends.emulation.recurrences import unpredicted
from precision_bisect.backends.emulation.semantics import (
    as_parsed,
    in_pieces,
    not_imported,
    own_arithmetic,
    whole_kernels,
)
from precision_bisect.backends.tensorrt.profiles import refuse_fixed_batch, shape_ranges
from precision_bisect.errors import ModelError, UsageError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.executor import Executor
from precision_bisect.execution.local_executor import LOCAL
from precision_bisect.explaining.diagnosis.extremes import Extremes, extremes
from precision_bisect.explaining.diagnosis.out_of_range import out_of_range
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import KINDS, LOW_TYPES
from precision_bisect.graphs.node_views import roles, tensor_shapes
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import (
    beyond_remark,
    may_run_high,
    pin_formless,
    pinned_remarks,
)
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes
from precision_bisect.judging.inputs.copies import Copies, copies_for
from precision_bisect.machine.free_space import ENGINE, LEAST_BYTES, MODELS_PER_BUILD, Space
from precision_bisect.options import Certify, Options
from precision_bisect.pipeline.foreign import refused, unknown_to
from precision_bisect.pipeline.loading import Loaded, load_run
from precision_bisect.pipeline.run_fingerprint import fingerprint, hashed
from precision_bisect.pipeline.whole_modules import Modules
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Backend, Described, Hasty, Problem
from precision_bisect.runs.ledger.fingerprint import digest_samples
from precision_bisect.runs.monitoring.events import Observer, Warned
from precision_bisect.runs.runfolder import ENGINES
from precision_bisect.search.case import Case
from precision_bisect.search.precision_curve import Curve
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.roofline import KERNEL_MS
from precision_bisect.settings.targets import TargetName

HELD_BYTES = 2**25
"""Bytes up to which sessions stay open from the search to the explanation. A limit on memory."""
FORECASTS = 0.5
"""Share of `--max-time` that the ranking may take. A bound: half is left for trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything of a run that exists before its first trial.

    The options of the case that was `loaded` name the backend now. `here` builds plans in this
    process, None where child processes build. `emulator` forecasts in this process: it is the
    backend itself where there is no engine, else it takes its memory with the first forecast. None
    where nothing can forecast.

    `work` is an empty folder for files that nobody needs afterwards. `why` is the reason for the
    backend. `graph` says what plans cost where speed counts. `together`, `beyond_range` and
    `overflowing` are as in `Problem`. `seen` runs the samples once in FP32. `executor` evaluates
    the trials. `refer` computes the FP32 outputs of copies. Targets that the operators are
    `unknown_to` cannot run the model. `remarks` are true of the model whatever the samples.
    """

    loaded: Loaded
    refer: ReferenceSession
    backend: Described
    here: Backend | None
    emulator: Backend | None
    work: Path
    why: str
    fingerprint: Mapping[str, Any]
    graph: CostGraph | None = None
    executor: Executor = LOCAL
    unknown_to: Sequence[TargetName] = ()
    remarks: Sequence[str] = ()
    together: Sequence[Sequence[int]] = ()
    beyond_range: Callable[[], Plan | None]
    overflowing: Callable[[], Plan | None]
    seen: Callable[[], Extremes | None]

    @property
    def case(self) -> Case:
        """What the run decides on."""
        return self.loaded.case

    def with_case(self, case: Case) -> "Prepared":
        """Return the same over another case."""
        return replace(self, loaded=replace(self.loaded, case=case))

    @property
    def start(self) -> Plan | None:
        """The plan to start from, None where that keeps no candidate."""
        plan = self.case.model.table.plan_of(self.loaded.begun_with)
        return plan if plan else None

    @property
    def problem(self) -> Problem:
        """What the strategy may know."""
        return Problem(
            names=self.case.model.table.names,
            modules=self.case.model.table.modules,
            tolerance=self.case.comparator.tolerance,
            seed=self.case.options.seed,
            builds=not self.backend.emulated,
            as_deployed=not (isinstance(self.backend, Hasty) and self.backend.hasty),
            workers=self.case.options.workers,
            # Without costs each layer counts as one.
            costs=() if self.graph is None else self.graph.alone_ms,
            graph=self.graph,
            speed=self.case.options.speed if self.case.options.speed.given else None,
            unit=KINDS[self.case.options.low].unit,
            beyond_range=self.beyond_range,
            overflowing=self.overflowing,
            start=self.start,
            together=self.together,
            roles=partial(roles, self.case.model),
            forecast_s=FORECASTS * (self.case.options.max_time_s or math.inf),
            large=total_bytes(self.case.model.weights) > LARGE_BYTES,
        )

    @property
    def modules(self) -> Modules:
        return Modules.in_table(self.case.model.table, self.case.pair)

    @property
    def curve(self) -> Curve:
        """The curve of the problem, of which nothing is known yet."""
        return Curve(problem=self.problem, copies=self.copies is not None)

    @property
    def everything(self) -> Plan:
        """The plan that keeps every layer."""
        return Plan.all_high(len(self.case.model.table.candidates))

    @property
    def baseline(self) -> Plan | None:
        """The plan beside which others are timed; None where nothing is built."""
        return None if self.backend.emulated else self.everything

    @property
    def certify(self) -> Certify:
        """How the answer is certified: as asked, but in full where no forecast saves a build."""
        mode = self.case.options.certify or "forecasts"
        useless = self.backend.emulated or self.emulator is None
        return "full" if mode == "forecasts" and useless else mode

    @property
    def engines(self) -> Path | None:
        """The folder for the engines of all trials; None where they are not kept."""
        return (
            self.case.options.folder.absolute() / ENGINES
            if self.case.options.keep_engines
            else None
        )

    @property
    def space(self) -> Space:
        """The disks that trials write to, and what one needs."""
        model = self.case.model.proto.ByteSize() + total_bytes(self.case.model.weights)
        times = 0 if self.backend.emulated else MODELS_PER_BUILD.get(self.backend.name, ENGINE)
        least = LEAST_BYTES + times * model
        return Space((self.case.options.folder, self.work), least)

    @property
    def copies(self) -> Copies | None:
        """The copies that judge answers in this process; None where there are none."""
        return copies_for(
            self.case.options,
            self.case.sets,
            self.refer,
            emulated=self.backend.emulated,
            layers=len(self.case.model.table.candidates),
            at_once=self.case.at_once,
        )

    @property
    def spec(self) -> EvaluatorSpec:
        """What makes an evaluator of this run in another process."""
        return replace(self.loaded.spec, engines=self.engines, baseline=self.baseline)

    def rest(self) -> None:
        """Free what the emulator and the reference hold, if it is much, until they are asked."""
        if not self.heavy:
            return
        self.refer.rest()
        if isinstance(self.emulator, EmulatedBackend):
            self.emulator.rest()

    @property
    def heavy(self) -> bool:
        """Whether a session is too large to stay open until it is asked again.

        It takes about the bytes of the weights, of all values of a sample, and of its nodes.
        """
        shapes = tensor_shapes(self.case.model, self.case.shapes)
        names = [name for layer in self.case.model.table.layers for name in layer.outputs]
        # Nobody knows what is missing: it may be large.
        values = sum(4 * prod(shapes[name]) if name in shapes else HELD_BYTES for name in names)
        nodes = LAYER_BYTES * len(self.case.model.table.layers)
        return total_bytes(self.case.model.weights) + values + nodes > HELD_BYTES


def prepare(
    options: Options, observer: Observer, work: Path, check: Callable[[Model], None] | None = None
) -> Prepared:
    """Read and check everything that the options name; `work` and `check` are as in `load_run`.

    Raises a PrecisionBisectError for anything that cannot work, before anything is written.
    """
    return assemble(load_run(options, observer, work, check), observer, work)


def assemble(
    loaded: Loaded,
    observer: Observer,
    work: Path,
    scales: Scales | None = None,
    executor: Executor = LOCAL,
) -> Prepared:
    """Choose the backend for the pair of types, and make it; `work` is an empty folder.

    Layers that the model's table pins stay pinned. `scales` are found by calibration unless they
    are given. The `executor` evaluates trials. Raises a PrecisionBisectError for a
    pair of types that cannot work.
    """
    case, options = loaded.case, loaded.case.options
    pair = case.pair
    # Before calibration and placing: both read the table of candidates.
    model = pin_formless(case.model, pair)
    if scales is None:
        scales = scales_for(model, pair, case.sets.steps or case.sets.judging, options)
    case = replace(case, model=model, scales=scales)
    try:
        placed = executor.place(replace(loaded, case=case).spec, model, work)
    except ModelError as error:
        if loaded.runs:
            raise
        raise refused(options.model, model) from error
    model, backend, here = placed.model, placed.backend, placed.here
    options = replace(options, backend=placed.name, workers=placed.workers)
    if not backend.emulated and placed.name != "onnxruntime":
        refuse_fixed_batch(model.inputs, options.engine)
    unknown = unknown_to(model.proto, ort_runs=loaded.runs)
    seconds = loaded.seconds * case.loop.runs
    options = choose_forecasts(choose_target(options, unknown), model, seconds)
    if not loaded.runs and (backend.emulated or options.forecast_on == "cuda"):
        raise UsageError(
            "the emulator runs on ONNX Runtime, which cannot run the model",
            "choose --backend tensorrt, or register the operators by --ort-custom-ops LIB.so",
        )
    if backend.emulated and options.engine.opt_shapes:
        # An engine is built for them, and refuses other samples.
        shapes = sample_shapes(model, case.sets.taken)
        values = shape_inputs(model.proto.graph, model.inputs)
        shape_ranges(model.inputs, options.engine, shapes, values)
    _check_ranking(options, emulated=backend.emulated)
    beyond = writer_of(model, pair).out_of_range
    maybe_remarks = (
        beyond_remark(beyond, pair),
        unpredicted(model),
        in_pieces(model),
        *(
            remark(model, pair, options.targets)
            for remark in (not_imported, as_parsed, own_arithmetic)
            if backend.emulated
        ),
        may_run_high(backend, options.low),
    )
    remarks = [remark for remark in maybe_remarks if remark]
    for remark in (*pinned_remarks(model, options.high), *remarks):
        observer(Warned(message=remark))
    refer = ReferenceSession(model, options.threads, optimised=case.optimised, how=case.loop)
    # It rounds all weights, so it opens late: with the first forecast, which not every run has.
    emulator = forecaster(model, options, scales, late=True) if loaded.runs else None
    case = replace(
        case,
        options=options,
        model=model,
        sets=replace(case.sets, refer=refer),
        # Workers share the cores: all of them together emulate as many samples as one would.
        at_once=max(1, case.at_once // options.workers),
    )
    loaded = replace(loaded, case=case)
    sample_extremes = cache(partial(extremes, model, case.fed, options.threads))
    outside = cache(
        partial(
            out_of_range,
            model,
            pair,
            case.fed,
            {layer.name: layer.largest for layer in beyond},
            sample_extremes,
            targets=options.targets,
        )
    )
    return Prepared(
        loaded=loaded,
        refer=refer,
        backend=backend,
        here=here,
        emulator=here if backend.emulated else emulator,
        work=work,
        why=placed.why,
        unknown_to=unknown,
        remarks=remarks,
        fingerprint=_fingerprint(loaded, backend),
        graph=_graph(loaded, backend),
        together=[
            kernel.tolist()
            for kernel in whole_kernels(case.model, case.pair, case.options.targets).members
        ],
        beyond_range=lambda: outside()[0],
        overflowing=lambda: outside()[1],
        seen=sample_extremes,
        executor=executor,
    )


def _check_ranking(options: Options, *, emulated: bool) -> None:
    """Raise UsageError where there is no engine to look into, or one of another low type."""
    if options.rank_by != "engine":
        return
    if emulated or options.elsewhere:
        where = f"--executor {options.executor}" if options.elsewhere else "the emulator"
        raise UsageError(
            f"--rank-by engine is for engines that are built from here, not for {where}",
            "leave it out",
        )
    if options.looped:
        raise UsageError(
            "--rank-by engine looks at single inferences, not at a loop", "leave it out"
        )
    if options.low not in LOW_TYPES or options.high != "fp32":
        raise UsageError(
            f"--rank-by engine is for fp16 and bf16 against fp32, not {options.low} against "
            f"{options.high}",
            "leave it out",
        )


def _fingerprint(loaded: Loaded, backend: Described) -> Mapping[str, Any]:
    """Return what a run must share with the ledger that it goes on from."""
    case = loaded.case
    facts = fingerprint(case.options, case.model, case.sets, case.comparator, backend)
    outputs = case.sets.given
    if outputs is not None:
        facts["reference"] = digest_samples(outputs)
    if not case.loop.plain:
        facts["loop"] = dict(case.loop.settings())
    if loaded.begun_with:
        facts["start"] = hashed(sorted(loaded.begun_with))
    return facts


def _graph(loaded: Loaded, backend: Described) -> CostGraph | None:
    """Return what plans cost for the first sample, where limits or the strategy ask for it.

    Without an engine no kernels are launched, and only operations and traffic count.
    """
    if not loaded.weighs_speed:
        return None
    return cost_graph(
        loaded.case.model, loaded.case.shapes, 0.0 if backend.emulated else KERNEL_MS
    )
