"""The run over the model with its norms put together: whether there is one, and what makes it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.executor import Placed, TrialTask
from precision_bisect.explaining.diagnosis.diagnose import emulates
from precision_bisect.graphs.fusing.norms import find_decomposed
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.typed.pinning import pin_unbuildable
from precision_bisect.judging.inputs.copies import can_change
from precision_bisect.pipeline.fastest import seeks_fastest
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.protocols import Backend
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.case import single_runs
from precision_bisect.search.workers import Workers
from precision_bisect.settings.targets import FUSED, Inside, inside, parser_steps


def is_tried(given: Prepared) -> bool:
    """Whether the form is tried: there is one, and nothing names layers or plans of the file.

    The targets must be known to compute in FP32 inside of all that is put together.
    """
    case, options = given.case, given.case.options
    if options.fuse_norms is not None or not seeks_fastest(given) or not emulates(case.model):
        return False
    half = options.low in LOW_TYPES and options.high == "fp32"
    own = case.model.table.asked or given.loaded.begun_with or options.elsewhere
    if not half or own or case.model.in_low or case.model.rounds_ends or not given.loaded.runs:
        return False
    operators = find_decomposed(case.model)
    kinds = {
        operator.kind
        for operator in operators
        # That is FP32 inside everywhere; by tanh it is not on CUDA.
        if (operator.kind, operator.approximate) != ("Gelu", "none")
    }
    return bool(operators) and all(
        inside(kind, target) is Inside.FP32 and kind not in parser_steps()["no_importer"]
        for kind in kinds
        for target in options.targets
    )


def over_fused_form(given: Prepared, *, tf32: bool) -> Prepared | None:
    """Return the run over the fused form; None where nothing is fused, or a target lacks it."""
    # Imported here: few models have norms in pieces.
    from precision_bisect.graphs.fusing.fuse import fuse

    case, options, work = given.case, given.case.options, given.work / FUSED
    try:
        work.mkdir()
        model, _ = fuse(case.model, *single_runs(case), work)
        options = replace(
            options,
            model=model.path,
            out=options.folder,
            engine=replace(options.engine, tf32="on") if tf32 else options.engine,
            keep_engines=False,
            # What is timed has a GPU to itself, as every plan that is built as deployed.
            workers=options.workers if given.backend.emulated else 1,
            gpus=options.gpus[:1],
        )
        case = replace(case, options=options, model=model, variant=FUSED)
        loaded = replace(given.loaded, case=case, remarks=())
        in_child = given.here is None
        executor = _AsPlaced(given) if in_child or given.backend.emulated else given.executor
        fused = assemble(loaded, ignore, work, executor=executor)
    except Exception:  # whatever is wrong with it, the file as it stands has its answer
        return None
    lacking = {*options.targets} & ({*fused.unknown_to} - {*given.unknown_to})
    return None if lacking else fused


@dataclass(frozen=True, slots=True)
class _AsPlaced:
    """An executor that asks no child: another form is built where the run's own is."""

    given: Prepared

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Return the run's own place; what the engine cannot build fails as a trial.

        An emulator expects few plans.
        """
        backend, options = self.given.backend, spec.options
        here: Backend | None = None
        if backend.emulated and self.given.here is not None:
            factors = options.copies > 0 and not can_change(spec.samples.feeds)
            few = partial(
                forecaster, options=options, scales=spec.scales, factors=factors, few=True
            )
            # The form has operators that the file has not, and some may have no kernel.
            model = pin_unbuildable(model, few(model), options.low)
            backend = here = few(model)
        return Placed(
            name=self.given.backend.name,
            why=self.given.why,
            backend=backend,
            model=model,
            workers=options.workers,
            here=here,
        )

    def workers(self, task: TrialTask, work: Path) -> AbstractContextManager[Workers]:
        """Return the executor's own workers."""
        return self.given.executor.workers(task, work)
