"""What both ways have in common: the points to judge, by what, and how the folder calls things.

Nothing in the folder is called by a name of the model: folders have the names of points, and
inputs and outputs that trtexec could misread are called otherwise in the models there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from precision_bisect.backends.trtexec.trtexec_flags import call_otherwise, plainly_called
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.exports.recheck import Unfit, stored_samples
from precision_bisect.exports.write import gains, mixed_model
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.judging.comparators.choose_comparator import (
    choose_comparator,
    exact_outputs,
    judge_words,
)
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.pipeline.reopening import Reopened, reopen
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.on_target import ANSWER, FP32
from precision_bisect.runs.results.saved import damaged, quoted
from precision_bisect.runs.runfolder import RUN_SCRIPT
from precision_bisect.settings.check_words import read_check
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

    case: Reopened
    points: Mapping[str, Export]
    inputs: Sequence[Sample]
    outputs: Sequence[Sample]
    called: Mapping[str, str]

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.case.finished.path.parent

    @property
    def model(self) -> Model:
        """The model that was searched."""
        return self.case.model

    @property
    def manifest(self) -> Manifest:
        text = json.dumps(self.case.finished.result.fingerprint, sort_keys=True)
        return Manifest(
            run=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            samples=len(self.inputs),
            points={name: tuple(export.kept) for name, export in self.points.items()},
        )


def read_subject(path: Path, flags: Mapping[str, Any]) -> Subject:
    """Return the run at a path, its folder or its model, with settings of engines by flags.

    Raises a PrecisionBisectError for bad input, and for a run without an answer or samples.
    """
    case = reopen(path, None, flags)
    case.check_code()
    finished, model = case.finished, case.model
    if case.options.looped:
        raise UsageError(
            f"{finished.path.parent} judges a loop, and trtexec runs each sample once",
            f"judge it where ONNX Runtime runs, by its {RUN_SCRIPT}",
        )
    points = dict(_points(finished, model, case.options.engine))
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
        case=case,
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


def comparator_of(run: Reopened, check: str | None) -> Comparator:
    """Return what judged a run; `check` names the script that did, which a result has not.

    Raises UsageError where the script is not given, or is another one, RunFolderError for a result
    that tells of another judge than it had, and what the judge's maker raises.
    """
    asked = run.options.check
    script = isinstance(asked, str) and read_check(asked).script
    if script and (check is None or read_check(check).script is None):
        raise UsageError(f"the run judged by the script {quoted(asked)}", "give it by --check")
    if check is not None and not script:
        raise UsageError("the run judged by no script", "leave --check out")
    options = run.options if check is None else replace(run.options, check=check)
    model = run.model.with_io_types(options.engine.io_types)
    outputs = [output.name for output in model.outputs]
    comparator = choose_comparator(options, outputs, exact_outputs(options, model))
    settings = plain_json.plain(comparator.settings())
    judged = run.finished.result.fingerprint.get("comparator")
    # A search for a part of the tolerance has noted which part.
    if not isinstance(judged, dict) or settings != {key: judged.get(key) for key in settings}:
        if check is not None:
            raise UsageError(
                f"{check} is not the script that judged the run, or has changed since",
                "give that one by --check",
            )
        raise damaged(run.finished.path, f"{judge_words(options)} is not what judged the run")
    return comparator
