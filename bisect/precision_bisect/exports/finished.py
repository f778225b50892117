"""A finished run as `result.json` tells of it: untrusted input, checked against the model.

A ladder lists its `rungs`, the highest first: the layers of the one above the lowest are those
that the last search kept, the layers further up are fixed. Without `rungs` there is one pair.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.errors import RunFolderError, UsageError, shortened
from precision_bisect.exports.export import Export
from precision_bisect.exports.fitting_files import Unfit, stored_samples
from precision_bisect.exports.settings_to_deploy import settings_to_deploy
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales, read_scales
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.judging.inputs.input_shapes import with_true_shapes
from precision_bisect.layer_table import LayerName, modules_around
from precision_bisect.options import Options
from precision_bisect.precisions import HIGH_NAMES, QUANTIZED_NAMES, Form, HighName, Pair
from precision_bisect.runs.results.chosen_point import kept_at, kept_in_files
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Status
from precision_bisect.runs.results.result import Asked, Pinned, Result, Rung
from precision_bisect.runs.results.saved import (
    damaged,
    ended_before_trials,
    quoted,
    read_result,
    result_file,
)
from precision_bisect.runs.runfolder import FUSED_MODEL
from precision_bisect.runs.saved_options import code_of_builds, options_of_result, typing_of
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.export_points import DEPLOY, FEWEST

# Of this pair a plan with every layer high is the model in FP32, whatever the run's types.
_PLAIN = Pair(low="fp16", high="fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run ended with: what `result` says, as the file at `path` has it, of a model.

    `kept` are candidates of the model, in network order, which stay in the pair's high type: those
    of the plan that `point` names. `fixed` maps the layers of higher rungs to their precision,
    `asked` those by order to their form, `pinned` the layers that were no candidates, because they
    cannot run low, to the reason; `shapes` each input to those that the samples had, as far as the
    file says. `modules` hold the answer. `options` are what was asked, without files that hold
    code: `code` has the names of those that builds had, by flag. The plan is of `model`: the one
    that was searched, or its fused form in the run folder.
    """

    kept: tuple[LayerName, ...]
    fixed: Mapping[LayerName, HighName]
    asked: Mapping[LayerName, Form]
    pinned: Mapping[LayerName, str]
    pair: Pair
    shapes: Mapping[str, Sequence[tuple[int, ...]]]
    result: Result
    path: Path
    options: Options
    code: Mapping[str, Sequence[str]]
    model: Model
    point: str = FEWEST
    modules: Sequence[str] = ()

    def scales(self) -> Scales:
        """Return the scales that the run has left, none where nothing is INT8 or FP8.

        Raises RunFolderError where they are needed and cannot be read.
        """
        return read_scales(self.path.parent) if self.pair.low in QUANTIZED_NAMES else Scales()

    def in_fp32(self) -> "Finished":
        """Return the plan of the same model with every layer in FP32."""
        every = self.model.table.names
        return replace(self, kept=every, fixed={}, asked={}, pinned={}, pair=_PLAIN, point="fp32")

    def to_export(self, settings: EngineSettings) -> Export:
        """Return what is to be written of this; outputs have the shapes that the run stored."""
        model = self.model
        # The end of a loop may have other shapes than one run.
        with suppress(Unfit):
            _, outputs = stored_samples(self.path.parent)
            model, _ = with_true_shapes(model, () if self.options.looped else outputs)
        return Export(
            model=self.with_pinned(model.with_io_types(settings.io_types)),
            kept=self.kept,
            point=self.point,
            pair=self.pair,
            settings=settings,
            scales=self.scales(),
            diagnosis=self.result.diagnosis,
            shapes=self.shapes,
            run=self.result.fingerprint,
            modules=self.modules,
            seal=self.result.emulated or "onnxruntime" in self.options.targets,
        )

    @property
    def backend(self) -> str:
        """What built the engines, "auto" after a forecast."""
        return "auto" if self.result.emulated else self.result.backend

    @property
    def high(self) -> tuple[LayerName, ...]:
        """What must be high in an engine: by higher rungs, by order, and what the search kept."""
        names = (name for name, form in self.asked.items() if form != self.pair.low_form)
        return (*self.fixed, *names, *self.kept)

    def with_pinned(self, model: Model) -> Model:
        """Return the model with the layers pinned that were no candidates of the last search."""
        table = model.table.asking(self.asked)
        for name, precision in self.fixed.items():
            table = table.on_rung({name}, Form(stored=precision))
        return pin(pin_formless(replace(model, table=table), self.pair), self.pinned)


def result_of(path: Path, model: Model) -> tuple[Path, Result]:
    """Return a `result.json`, or the one in a run folder, of a run of this model, and its path.

    Raises RunFolderError for a file that is missing or no such result, or of another model.
    """
    file = result_file(path)
    result = read_result(file, "name the run folder or its result.json by --plan")
    if not result.fingerprint:
        raise ended_before_trials(file.parent)
    if result.fingerprint.get("model") != model.digest:
        raise RunFolderError(
            f"{file} belongs to another model than {model.path}, or the model has changed since",
            "give the model that was searched, or run the search again",
        )
    return file, result


def read_finished(path: Path, model: Model, point: str | None = None) -> Finished:
    """Read a `result.json`, or the one in a run folder, that a run of this model has written.

    What is kept is that of the plan that a `point` names, None for what its files hold. Raises
    RunFolderError as `result_of` does, for layers that the model does not have, and where there is
    no answer. Raises UsageError for a point that is not there.
    """
    file, result = result_of(path, model)
    rungs = _rungs(file, result)
    _check_names(file, [name for _, names in rungs for name in names], model)
    fixed = {LayerName(name): high for high, names in rungs[:-1] for name in names}
    pinned: Sequence[Pinned] = [entry for entry in result.pinned if entry.layer not in fixed]
    pair = Pair(low=result.low, high=rungs[-1][0])
    forms = {
        LayerName(request.layer): _form(file, request, result, pair) for request in result.asked
    }
    if point is None:
        point, kept = kept_in_files(result)
    else:
        point, kept = kept_at(point, result.kept, result.deploy, (result.curve, result.culprits))
    modules = _modules(file, result, model) if point in (DEPLOY, FEWEST) else ()
    is_fused = point == DEPLOY and result.deploys_fused
    if is_fused:
        model, pinned = _fused_form(file, result)
    _check_names(file, [*kept, *forms, *(entry.layer for entry in pinned)], model)
    # A search that was cut off before any plan passed has kept nothing, which is no answer.
    nothing = not (kept or is_fused or result.status is Status.NOTHING_TO_KEEP)
    if point in (DEPLOY, FEWEST) and (result.status in WITHOUT_ANSWER or nothing):
        raise RunFolderError(
            f"{file} has no answer: its status is {result.status.value!r}",
            "go on with the run by --resume, or search again with other limits",
        )
    wanted = frozenset(kept).difference(fixed)
    options, code = _options(file, result, model)
    finished = Finished(
        kept=tuple(name for name in model.table.names if name in wanted),
        fixed=fixed,
        asked=forms,
        pinned={LayerName(entry.layer): entry.reason for entry in pinned},
        pair=pair,
        shapes=_shapes(result.fingerprint.get("shapes"), model),
        result=result,
        path=file,
        options=options,
        code=code,
        model=model,
        point=point,
        modules=modules,
    )
    searched = finished.with_pinned(model)
    held = point == DEPLOY and result.deploy is not None and result.deploy.tf32
    held = held or (result.tf32_on and point == kept_in_files(result)[0])
    plan = searched.table.plan_of(finished.kept)
    settings = settings_to_deploy(options, result.backend, searched, pair, plan, held=held)
    return replace(finished, options=replace(options, engine=settings))


def _fused_form(file: Path, result: Result) -> tuple[Model, Sequence[Pinned]]:
    """Return the fused form that a plan to deploy is of, and its pinned layers."""
    if result.fused is None:
        raise damaged(file, "its plan to deploy is of a fused form that it does not tell of")
    model = load_model(file.parent / FUSED_MODEL)
    if model.digest != result.fused.model:
        raise RunFolderError(
            f"{model.path} is not the model that {file.name} beside it is of",
            "run the search again",
        )
    return model, [Pinned(layer=name, reason=why) for name, why in result.fused.pinned.items()]


def _options(
    file: Path, result: Result, model: Model
) -> tuple[Options, Mapping[str, Sequence[str]]]:
    """Return the options of a run as its engines had them, and which files with code those had."""
    if not result.options:
        raise RunFolderError(
            f"{file} does not tell the options of its run, as those of older versions",
            "run the search again with this version",
        )
    try:
        options = options_of_result(result.options, model.path)
        code = code_of_builds(result.options)
    except ValueError as error:
        raise damaged(file, shortened(f"options: {error}")) from error
    except UsageError as error:
        raise damaged(file, shortened(f"options: {error.message}")) from error
    if options.engine.typing == "auto":
        typing = typing_of(result.fingerprint)
        options = replace(options, engine=replace(options.engine, typing=typing))
    return options, code


def _rungs(file: Path, result: Result) -> list[tuple[HighName, Sequence[str]]]:
    """Return the rungs above the lowest, the highest first; a run of one pair has one."""
    rungs = result.rungs or [Rung(precision=result.high, layers=[], count=0)]
    above = [rung for rung in rungs if rung.precision != result.low]
    named_rungs = [
        (high, rung.layers)
        for rung in above
        for high in HIGH_NAMES
        if rung.precision == high and rung.layers is not None
    ]
    if not named_rungs or len(named_rungs) < len(above):
        raise damaged(file, "its rungs list no layers above the low type")
    return named_rungs


def _form(file: Path, request: Asked, result: Result, pair: Pair) -> Form:
    """Return the form that was asked for: the lowest of the run, or the highest."""
    if request.precision == result.low:
        return pair.low_form
    if request.precision == result.high:
        return Form(stored=result.high)
    raise damaged(file, f"{quoted(request.layer)} was asked for in {request.precision}")


def _modules(file: Path, result: Result, model: Model) -> Sequence[str]:
    """Return the modules that hold the answer whole, if any."""
    names = result.by_modules.names if result.by_modules else ()
    modules = {name for layer in model.table.layers for name in modules_around(layer.module)}
    for name in names:
        if name not in modules:
            raise damaged(file, f"the model has no module {quoted(name)}")
    return names


def _shapes(value: object, model: Model) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of the samples; what is no list of sizes is left out.

    Of an input that gives a shape by its values these may be any numbers. A cache begins empty.
    """
    values = shape_inputs(model.proto.graph, model.inputs)
    shapes_by_input: dict[str, list[tuple[int, ...]]] = {}
    for name, shapes in value.items() if isinstance(value, dict) else ():
        for shape in shapes if isinstance(shapes, list) else ():
            listed = isinstance(shape, list) and all(type(size) is int for size in shape)
            if listed and (name in values or all(size >= 0 for size in shape)):
                shapes_by_input.setdefault(name, []).append(tuple(shape))
    return shapes_by_input


def _check_names(file: Path, names: Sequence[str], model: Model) -> None:
    candidates = frozenset(model.table.names)
    earlier: set[str] = set()
    for name in names:
        if name not in candidates or name in earlier:
            what = "twice" if name in earlier else "which is no candidate of the model"
            raise RunFolderError(
                f"{file} names the layer {quoted(name)}, {what}",
                "list the layers with `precision-bisect layers`",
            )
        earlier.add(name)
