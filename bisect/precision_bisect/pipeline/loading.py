"""What a run reads before any precision matters: model, samples, reference, judge, strategy.

A ladder of types loads once and searches several times over the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from precision_bisect.backends.backend_plugin import backend_plugin
from precision_bisect.errors import InputError, ModelError, UsageError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.graphs.fp32_outputs import ReferenceSession, non_finite, not_finite
from precision_bisect.graphs.graph import operators
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import are_packed, runtime, use_custom_ops
from precision_bisect.graphs.typed.taken_branches import layers_inside, take_branches
from precision_bisect.graphs.weights import in_file, total_bytes
from precision_bisect.judging.comparators.choose_comparator import (
    ReadyMade,
    choose_comparator,
    exact_outputs,
    judge_words,
)
from precision_bisect.judging.comparators.comparison_remarks import (
    exact_remark,
    overlooked_outputs,
    overlooked_remarks,
    wide_remark,
)
from precision_bisect.judging.comparators.steadiness import steadiness, unsettled
from precision_bisect.judging.comparators.task_heads import head_remarks, image_sizes
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.judging.inputs.choose_loop import choose_loop, fed_inputs
from precision_bisect.judging.inputs.distinct import distinct
from precision_bisect.judging.inputs.input_check import CheckedSamples
from precision_bisect.judging.inputs.input_shapes import with_true_shapes
from precision_bisect.judging.inputs.loops import Loop, feeds_of
from precision_bisect.judging.inputs.reference import (
    Reference,
    find_reference,
    given_reference,
    read_outputs,
    try_batch,
    with_fitting_size,
)
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.forked import in_copy
from precision_bisect.machine.free_space import trim
from precision_bisect.machine.threads import fitting, samples_at_once, usable
from precision_bisect.options import Options
from precision_bisect.pipeline.foreign import ill_typed_remark
from precision_bisect.pipeline.known_layers import Known, with_known
from precision_bisect.pipeline.load_samples import load_samples, refuse_inputs
from precision_bisect.pipeline.refusals import (
    nothing_to_decide,
    refuse_for_judge,
    refuse_many,
    refuse_sequences,
)
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import Checked, Sample, Strategy, WeighsSpeed
from precision_bisect.runs.monitoring.events import Observer, Warned
from precision_bisect.search.case import Case, single_runs
from precision_bisect.search.sample_sets import (
    CHOSEN,
    SampleSets,
    divided,
    judges_each,
    with_something,
)
from precision_bisect.settings.sample_options import ENGINE_REFERENCE
from precision_bisect.trial import SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a run decides on, and how; nothing of it depends on what builds engines.

    `request` are the options as they were asked for, of a ladder the whole; those of the `case`
    are those of this search. `remarks` are sentences for the report. One plain inference takes
    `seconds` on all cores. `runs` is False where ONNX Runtime cannot run the model, so that
    nothing can forecast. A start keeps `begun_with`. No plan fails by `overlooked` outputs.
    `weights` is as in `BackendTask`.
    """

    request: Options
    case: Case
    strategy: Strategy
    runs: bool = True
    seconds: float = 0.0
    begun_with: frozenset[LayerName] = frozenset()
    remarks: Sequence[str] = ()
    overlooked: Sequence[str] = ()
    weights: Path | None = None

    @property
    def weighs_speed(self) -> bool:
        """Whether latencies decide which plan is taken."""
        return self.case.options.speed.given or isinstance(self.strategy, WeighsSpeed)

    @property
    def spec(self) -> EvaluatorSpec:
        """What makes a backend in another process."""
        case = self.case
        return EvaluatorSpec(
            options=case.options.sent,
            digest=case.model.digest,
            table=case.model.table,
            comparator=case.comparator,
            samples=case.sets.sent(elsewhere=case.options.elsewhere),
            scales=case.scales,
            loop=case.loop,
            keep=case.options.folder.absolute(),
            timed=self.weighs_speed,
            optimised=case.optimised,
            weights=None if case.options.elsewhere else self.weights,
        )


def load_run(
    options: Options, observer: Observer, work: Path, check: Callable[[Model], None] | None = None
) -> Loaded:
    """Read and check everything that the options name, except the backend.

    A model that is made for the run goes into the empty folder `work`. A further `check` of the
    model's layers raises as this does: a PrecisionBisectError for anything that cannot work. What
    the model alone refuses comes before any sample is read, and before any remark.
    """
    request = options
    # Cheap checks first: a misspelt strategy is told before gigabytes of weights are read.
    strategy = _strategy(options)
    if not (options.backend == "auto" or options.elsewhere):
        backend_plugin(options.backend)
    use_custom_ops(options.engine.ort_custom_ops)
    original = load_model(options.model, apart=True).with_io_types(options.engine.io_types)
    original = _shared(original, work)
    refuse_sequences(original)
    if not (original.table.candidates or layers_inside(original)):
        raise nothing_to_decide(options.model, original.table.layers)
    classes = exact_outputs(options, original)
    comparator = choose_comparator(options, [output.name for output in original.outputs], classes)
    singly = judges_each(comparator)
    refuse_for_judge(options, comparator, each=singly)
    if options.by == "module" and not original.table.modules:
        raise UsageError(
            f"--by module: the names in {options.model} tell no modules",
            "leave it out, or export it by PyTorch",
        )
    refuse_inputs(options, original)

    def settled(model: Model) -> Known:
        if check is not None:
            check(model)
        return with_known(options, model)

    # What is inside of Ifs, and what is fused, is known once samples have run.
    inner = options.take_branches or not original.table.candidates
    known_model = Known(original) if inner or options.fuse_norms else settled(original)
    refuse_many(options, strategy, len(known_model.model.table.candidates))
    # What the judge decides by itself is said.
    for note in (exact_remark(comparator, classes), wide_remark(comparator, options)):
        if note:
            observer(Warned(message=note))
    loop = choose_loop(options, original)
    options, samples, read, odd_remarks = load_samples(
        options, original, observer, fed_inputs(loop, original)
    )
    slips: list[int] = []
    new = distinct(_watched(samples, slips))
    held_out, pool = divided(new, options.holdout, options.seed, each=singly)
    options, model, inside = _without_ifs(options, known_model.model, samples, observer, work)
    if inner and not options.fuse_norms:
        known_model = settled(model)
        model = known_model.model
    refuse_many(options, strategy, len(model.table.candidates))
    given_outputs = _given_outputs(options, original, samples, work, loop)
    options, reference, without = _reference(
        options,
        original,
        [samples[i] for i in pool],
        given_outputs and [given_outputs[i] for i in pool],
        loop,
    )
    refer = ReferenceSession(original, options.threads, optimised=reference.optimised, how=loop)
    if reference.runs and given_outputs is None:
        _refuse_slips(samples, slips, refer)
    sets = SampleSets(
        feeds=samples,
        pool=pool,
        reference=reference.outputs,
        held_out=held_out,
        each=singly,
        distinct=new,
        given=given_outputs,
        refer=refer,
    )
    every = [output.name for output in original.outputs]
    named = comparator.outputs if isinstance(comparator, ReadyMade) else every
    sets = with_something(sets, named, options.seed)
    if isinstance(comparator, ReadyMade) and not non_finite(reference.outputs):
        sizes = image_sizes(original, [samples[i] for i in pool])
        comparator = comparator.fitted(reference.outputs, sizes)
    choosing, expected = sets[SampleSet.JUDGED]
    sets = replace(sets, steps=() if loop.plain else feeds_of(loop, refer.step, choosing, samples))
    single = [refer.step(feed) for feed in sets.steps] or expected
    refer.rest()
    try_out(comparator, expected, judge_words(options))
    random = steadiness(original, choosing, reference, comparator, options.threads, loop)
    # The sessions are closed, and children take their place.
    trim()
    if (batch := options.engine.time_batch) is not None and reference.runs:
        try_batch(original, batch, sets.steps or choosing, single, options.threads)
    model, declared = with_true_shapes(model, single)
    remarks = [
        # First what should judge: screens show the first in full.
        *head_remarks(options, original, choosing, expected),
        *filter(None, (ill_typed_remark(original),)),
        *(*known_model.remarks, *without, *declared),
        *filter(None, (reference.remark, random, unsettled(reference, comparator))),
        *odd_remarks,
        *filter(None, (new.remark if options.inputs is not None else "",)),
    ]
    if read is not None:
        observer(read)
    # Of outputs that judge nothing the result tells by itself.
    for remark in (*remarks, *overlooked_remarks(comparator, expected)):
        observer(Warned(message=remark))
    layers, seconds = len(model.table.candidates), reference.seconds
    threads = fitting(seconds, layers, min(CHOSEN, len(sets.pool)), options.threads)
    case = Case(
        options=replace(options, threads=threads),
        model=model,
        sets=sets,
        comparator=comparator,
        optimised=reference.optimised,
        at_once=samples_at_once(seconds, threads, options.threads),
        loop=loop,
    )
    loaded = Loaded(
        request=request,
        case=case,
        strategy=strategy,
        runs=reference.runs,
        seconds=seconds,
        begun_with=known_model.start,
        remarks=[*remarks, *inside],
        overlooked=overlooked_outputs(comparator, expected),
        weights=work.absolute() / "typed-weights",
    )
    return _fused(loaded, observer, work, settled) if options.fuse_norms else loaded


def _shared(model: Model, work: Path) -> Model:
    """Return the model with its weights in a file for all sessions, if these pack none of them.

    Where the file cannot be written, each session has copies.
    """
    with suppress(OSError):
        if not are_packed(len(model.proto.graph.node), total_bytes(model.weights)):
            return replace(model, weights=in_file(model.weights, work / "weights"))
    return model


def _watched(samples: Iterable[Sample], slips: list[int]) -> Iterator[Sample]:
    """Yield samples, and add the numbers of those with NaN or Inf to the list."""
    for number, sample in enumerate(samples):
        if any(map(not_finite, sample.values())):
            slips.append(number)
        yield sample


def _refuse_slips(
    samples: Sequence[Sample], slips: Iterable[int], refer: ReferenceSession
) -> None:
    """Raise InputError for NaN or Inf that come out in FP32: a mask may hold them, no answer."""
    for number in slips:
        sample, broken = samples[number], False
        # One that is held out need not run; see `SampleSets.single`.
        with suppress(RuntimeError):
            broken = any(map(not_finite, refer(sample).values()))
        if broken:
            name, share = next((n, t) for n, a in sample.items() if (t := not_finite(a)))
            place = f"sample {number}"
            if isinstance(samples, CheckedSamples):
                place = samples.place(number)
            raise InputError(
                f"input {name!r} of {place} has {share}, and so have the outputs",
                "check how it was made",
            )


def _given_outputs(
    options: Options, model: Model, samples: Sequence[Sample], work: Path, loop: Loop
) -> Sequence[Sample] | None:
    """Return the outputs of all samples that `--reference` gives, None where it does not."""
    if options.reference is None:
        return None
    if options.reference == ENGINE_REFERENCE:
        # Imported here: it brings in child processes.
        from precision_bisect.pipeline.verifying.one_build import engine_outputs

        return engine_outputs(options, model, samples, work, loop)
    return read_outputs(options.reference, model, len(samples))


def _reference(
    options: Options,
    model: Model,
    samples: Sequence[Sample],
    outputs: Sequence[Sample] | None,
    loop: Loop,
) -> tuple[Options, Reference, Sequence[str]]:
    """Return the reference, computed or given; a given one has no copies, which is said."""
    threads = options.threads or usable()
    if outputs is None:
        try:
            runtime()  # imported once, not in the copy alone
            compute = partial(find_reference, model, samples, threads, loop)
            return options, in_copy(compute, f"running {model.path} by ONNX Runtime"), ()
        except InputError as error:
            raise with_fitting_size(error, model, samples[0]) from error
    reference = given_reference(model, samples, outputs, threads, loop)
    remark = "answers are judged on the samples alone: --reference has no outputs of their copies"
    remarks = [remark] if options.copies else ()
    return replace(options, copies=0, copies_failing=0), reference, remarks


def _fused(
    loaded: Loaded, observer: Observer, work: Path, settled: Callable[[Model], Known]
) -> Loaded:
    """Return the run over the fused model; the reference stays that of the original model."""
    # Imported here: few runs fuse.
    from precision_bisect.graphs.fusing.fuse import fuse

    case = loaded.case
    fused, remark = fuse(case.model, *single_runs(case), work)
    model, start, remarks = settled(fused)
    all_remarks = (remark, *remarks)
    for remark in all_remarks:
        observer(Warned(message=remark))
    options = replace(case.options, model=model.path, out=case.options.folder)
    case = replace(case, options=options, model=model)
    return replace(loaded, case=case, begun_with=start, remarks=[*loaded.remarks, *all_remarks])


def _without_ifs(
    options: Options, model: Model, samples: Sequence[Sample], observer: Observer, work: Path
) -> tuple[Options, Model, Sequence[str]]:
    """Return the run with the taken branches of Ifs in place of them, where that is needed.

    It is needed where `--take-branches` asks for it, or where no layer lies outside of Ifs. Also
    returns remarks on layers that stay inside other nodes. Raises ModelError where no layer is
    outside.
    """
    remarks, path = [], model.path
    if options.take_branches or not model.table.candidates:
        model, note = take_branches(model, samples, work)
        if note:
            options = replace(options, model=model.path, out=options.folder)
            remarks.append(note)
        elif options.take_branches:
            remarks.append("--take-branches: every sample takes the same branch of no If")
    inside = layers_inside(model)
    if not model.table.candidates:
        raise ModelError(
            f"{path} has no FP32 layers outside other nodes: {inside}"
            if inside
            else f"the samples take branches of {path} that hold no FP32 layers",
            "export it without them, or give samples that take one branch of each If; what a Loop "
            "or a Scan holds can be searched as a model of its own",
        )
    if inside:
        freed = "If" in operators(model.proto.graph) and not options.take_branches
        way_out = "; --take-branches may free those in Ifs" * freed
        remarks.append(f"layers inside other nodes stay FP32: {inside}{way_out}")
    for remark in remarks:
        observer(Warned(message=remark))
    return options, model, remarks


def _strategy(options: Options) -> Strategy:
    """Return the strategy; one that needs another package says so before any work."""
    settings = {} if options.optuna_storage is None else {"storage": options.optuna_storage}
    strategy = load_strategy(options.strategy, **settings)
    if isinstance(strategy, Checked):
        strategy.check()
    return strategy
