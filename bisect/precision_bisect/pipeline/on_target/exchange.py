"""What both ways have in common: the points to judge, by what, and how the folder calls things.

Nothing in the folder is called by a name of the model: folders have the names of points, and
inputs and outputs that trtexec could misread are called otherwise in the models there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from precision_bisect.backends.trtexec.trtexec_flags import call_otherwise, plainly_called
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.exports.mixed import mixed_model
from precision_bisect.exports.polygraphy_command import METRICS
from precision_bisect.exports.recheck import Unfit, stored_samples
from precision_bisect.exports.write import gains
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.judging.comparators.tolerance import Tolerance
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.pipeline.verifying.verify import (
    AskedSettings,
    engine_as_in_run,
    model_and_result,
)
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs.results.on_target import ANSWER, FP32
from precision_bisect.runs.results.saved import damaged, quoted
from precision_bisect.runs.typed_json import typed
from precision_bisect.settings.check_words import READY_MADE, read_check
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.export_points import FEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a folder is for: the contents of `points.json`, version 1.

    `run` is the digest of the run's fingerprint; `points` has the kept layers by point.
    """

    schema: Literal[1] = 1
    run: str
    samples: int
    points: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A finished run, and the points of it to judge.

    `inputs` and `outputs` are the samples that it has stored, and what FP32 makes of them;
    `called` has what the inputs and outputs are called in the folder.
    """

    run: Path
    model: Model
    finished: Finished
    points: Mapping[str, Export]
    inputs: Sequence[Sample]
    outputs: Sequence[Sample]
    called: Mapping[str, str]

    @property
    def manifest(self) -> Manifest:
        text = json.dumps(self.finished.fingerprint, sort_keys=True)
        return Manifest(
            run=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            samples=len(self.inputs),
            points={name: tuple(export.kept) for name, export in self.points.items()},
        )


def read_subject(path: Path, settings: EngineSettings, flagged: Sequence[str]) -> Subject:
    """Return the run at a path: its folder, or its model.

    Raises a PrecisionBisectError for bad input, and for a run without an answer or samples.
    """
    use_custom_ops(settings.ort_custom_ops)
    model_path, result = model_and_result(path, None)
    model = load_model(model_path)
    finished = read_finished(result, model)
    build_settings = AskedSettings(backend=None, settings=settings, flagged=flagged)
    points = dict(_points(finished, model, engine_as_in_run(finished, build_settings).settings))
    run = finished.path.parent
    if not gains(points[ANSWER]):
        raise UsageError(
            f"the answer of {run} keeps every layer high, so there is nothing to judge",
            "search with a larger tolerance",
        )
    try:
        with quiet(), without_torch():
            inputs, outputs = stored_samples(run)
    except Unfit as why:
        hint = "run it again, which stores them, or says why it does not"
        raise RunFolderError(f"{run} has no samples to judge by: {why}", hint) from why
    for specs, samples in ((model.inputs, inputs), (model.outputs, outputs)):
        for spec in specs:
            if any(spec.name not in sample for sample in samples):
                raise RunFolderError(f"a sample of {run} lacks {spec.name!r}", "run it again")
    return Subject(
        run=run,
        model=model,
        finished=finished,
        points=points,
        inputs=inputs,
        outputs=outputs,
        called=plainly_called(model),
    )


def _points(
    finished: Finished, model: Model, settings: EngineSettings
) -> Iterator[tuple[str, Export]]:
    """Yield the points by name, that which matters most first, each plan once."""
    yield ANSWER, finished.to_export(model, settings)
    yield FP32, finished.in_fp32(model).to_export(model, settings)
    kept_sets = {finished.kept}
    for point in (FEWEST, "all_low", "culprits", "margin"):
        try:
            at_point = read_finished(finished.path, model, point)
        except UsageError:  # the run has no such point
            continue
        if at_point.kept not in kept_sets:
            kept_sets.add(at_point.kept)
            yield point, at_point.to_export(model, settings)


def typed_point(subject: Subject, export: Export) -> TypedGraph:
    """Return the typed model of a point as it lies in the folder. Raises NotWritable."""
    typed = mixed_model(export)
    try:
        call_otherwise(typed.proto.graph, subject.called)
    except UsageError as why:
        raise NotWritable(why.message) from why
    return typed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The settings of a comparator, as a fingerprint has them."""

    metric: str | None = None
    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)
    quantile: float = 0.99
    classes: Mapping[str, float] = field(default_factory=dict)
    check: str | None = None
    outputs: Sequence[str] = ()
    script: str | None = None
    tolerance: float | None = None


def comparator_of(finished: Finished, check: str | None) -> Comparator:
    """Return what judged the run; `check` names a script that did, which a result has not.

    Raises UsageError where the script is not given, or is another one, and for a metric of a
    plug-in; RunFolderError for a result that tells of no comparator.
    """
    try:
        spec = typed(_Told, finished.fingerprint.get("comparator"))
        if spec.script is not None:
            return _script(spec, check)
        if check is not None:
            raise UsageError("the run judged by no script", "leave --check out")
        if spec.check and spec.check in READY_MADE and spec.tolerance is not None:
            return ReadyMade(name=spec.check, outputs=spec.outputs, tolerance=spec.tolerance)
        if spec.metric in METRICS:
            return PolygraphyComparator(
                metric=spec.metric,
                atol=Tolerance(per_output=spec.atol),
                rtol=Tolerance(per_output=spec.rtol),
                outputs=tuple(dict.fromkeys((*spec.atol, *spec.classes))),
                quantile=spec.quantile,
                shares=spec.classes,
            )
    except ValueError as error:
        raise damaged(finished.path, f"fingerprint.comparator: {error}") from error
    raise UsageError(
        f"the run judged by {quoted(spec.metric or spec.check)}, a plug-in's metric, whose limits "
        "are not told",
        "search with a metric that comes along, or --check FILE.py:FUNCTION",
    )


def _script(spec: _Told, check: str | None) -> ScriptComparator:
    words = read_check(check) if check is not None else None
    if words is None or words.script is None:
        raise UsageError(
            f"the run judged by the script {quoted(spec.check)}", "give it by --check"
        )
    comparator = ScriptComparator(words.script, words.name, spec.tolerance)
    if comparator.settings()["script"] != spec.script:
        raise UsageError(
            f"{words.script} is not the script that judged the run, or has changed since",
            "give that one by --check",
        )
    return comparator
