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
from precision_bisect.exports.finished import read_finished
from precision_bisect.exports.fitting_files import Unfit, stored_samples
from precision_bisect.exports.trtexec import weak_flags
from precision_bisect.exports.write import METADATA_PREFIX, gains, mixed_model
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.model_files import remove_origins
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.judging.comparators.choose_comparator import (
    choose_comparator,
    exact_outputs,
    judge_words,
)
from precision_bisect.pipeline.reopening import Reopened, reopen
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.on_target import ANSWER, FP32
from precision_bisect.runs.results.saved import damaged, quoted
from precision_bisect.runs.runfolder import RUN_SCRIPT
from precision_bisect.runs.typed_json import read_typed
from precision_bisect.settings.check_words import read_check
from precision_bisect.settings.export_points import FEWEST

MANIFEST = "points.json"
WHOLE = "name the folder that --write has made, whole as it came back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a folder is for: the contents of `points.json`, version 1.

    `run` is the digest of the run's fingerprint; `points` has the kept layers by point. `typing`
    is how the plans are said: by types in the graph, or by names of layers.
    """

    schema: Literal[1] = 1
    run: str
    samples: int
    points: Mapping[str, Sequence[str]]
    typing: Literal["strong", "weak"] = "strong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A finished run, and the points of it to judge.

    `inputs` and `outputs` are the samples that it has stored, and what FP32 makes of them;
    `called` has what the inputs and outputs are called in the folder. `weak` has the flags that
    say the types of each point by names of layers, None where these are in the graphs; `left_out`
    the points that names cannot say, each with the reason.
    """

    case: Reopened
    points: Mapping[str, Export]
    inputs: Sequence[Sample]
    outputs: Sequence[Sample]
    called: Mapping[str, str]
    weak: Mapping[str, Sequence[str]] | None
    left_out: Mapping[str, str]

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.case.finished.path.parent

    @property
    def model(self) -> Model:
        """The model that the answer is of: the one that was searched, or its fused form."""
        return self.case.finished.model

    @property
    def typing(self) -> Literal["strong", "weak"]:
        """How the plans are said in the folder."""
        return "strong" if self.weak is None else "weak"

    @property
    def time_batch(self) -> int | None:
        """The batch that is timed, None for that of the samples."""
        return self.case.options.engine.time_batch

    @property
    def manifest(self) -> Manifest:
        text = json.dumps(self.case.finished.result.fingerprint, sort_keys=True)
        return Manifest(
            run=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            samples=len(self.inputs),
            points={name: tuple(export.kept) for name, export in self.points.items()},
            typing=self.typing,
        )


def read_subject(path: Path, flags: Mapping[str, Any]) -> Subject:
    """Return the run at a path, its folder or its model, with settings of engines by flags.

    Raises a PrecisionBisectError for bad input, and for a run without an answer or samples.
    """
    case = reopen(path, None, flags)
    case.check_code()
    finished, model = case.finished, case.finished.model
    if case.options.looped:
        raise UsageError(
            f"{finished.path.parent} judges a loop, and trtexec runs each sample once",
            f"judge it where ONNX Runtime runs, by its {RUN_SCRIPT}",
        )
    points = dict(_points(case))
    run = finished.path.parent
    # FP32 against FP32 would pass everywhere and prove nothing.
    if not gains(points[ANSWER]):
        raise UsageError(
            f"the answer of {run} keeps every layer high, so there is nothing to judge",
            "search with a larger tolerance",
        )
    try:
        inputs, outputs = stored_samples(run)
    except Unfit as why:
        hint = "run it again, which stores them, or says why it does not"
        raise RunFolderError(f"{run} has no samples to judge by: {why}", hint) from why
    for specs, samples in ((model.inputs, inputs), (model.outputs, outputs)):
        for spec in specs:
            if any(spec.name not in sample for sample in samples):
                raise RunFolderError(f"a sample of {run} lacks {spec.name!r}", "run it again")
    weak: Mapping[str, Sequence[str]] | None = None
    left_out: Mapping[str, str] = {}
    if case.options.engine.typing == "weak":
        weak, left_out = _weak(points)
        points = {name: points[name] for name in weak}
    return Subject(
        case=case,
        points=points,
        weak=weak,
        left_out=left_out,
        inputs=inputs,
        outputs=outputs,
        called=plainly_called(model),
    )


def _points(case: Reopened) -> Iterator[tuple[str, Export]]:
    """Yield the points by name, that which matters most first, each plan once."""
    finished, settings = case.finished, case.options.engine
    yield ANSWER, finished.to_export(settings)
    in_tf32, fp32 = finished.result.tf32, settings
    if settings.in_tf32 and in_tf32 is not None and not in_tf32.fp32_passed:
        # The answer holds so, FP32 does not.
        fp32 = replace(settings, tf32="off")
    yield FP32, finished.in_fp32().to_export(fp32)
    plans = {(finished.model.path, finished.kept)}
    for point in (FEWEST, "all_low", "culprits", "margin"):
        try:
            at_point = read_finished(finished.path, case.model, point)
        except UsageError:  # the run has no such point
            continue
        plan = at_point.model.path, at_point.kept
        if plan not in plans:
            plans.add(plan)
            own = settings
            if at_point.options.engine.in_tf32 != finished.options.engine.in_tf32:
                own = replace(settings, tf32=at_point.options.engine.tf32)
            yield point, at_point.to_export(own)


def _weak(points: Mapping[str, Export]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the flags that say points by names, and why others have none. Raises UsageError."""
    flags: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    for name, export in points.items():
        try:
            # One file goes to the target, as names say plans of one graph alone.
            if export.model.path != points[ANSWER].model.path:
                raise NotWritable("it is of the file as it stands, the answer of its fused form")
            if export.quantized:
                raise NotWritable("names cannot say scales")
            if name == FP32:
                flags[name] = [f"--{kind}" for kind in export.quantized_in_file]
            else:
                flags[name] = list(weak_flags(export))
        except NotWritable as why:
            left_out[name] = str(why)
    if ANSWER in left_out:
        raise UsageError(
            f"no weak plan says the answer: {left_out[ANSWER]}",
            "take --typing strong, which TensorRT 10 and later can",
        )
    return flags, left_out


def typed_point(subject: Subject, export: Export) -> TypedGraph:
    """Return the typed model of a point as it lies in the folder. Raises NotWritable."""
    return _for_folder(subject, mixed_model(export))


def named_model(subject: Subject) -> TypedGraph:
    """Return the model whose layers weak plans name, in FP32. Raises NotWritable."""
    model = subject.points[ANSWER].model
    every = Plan.all_high(len(model.table.candidates))
    writer = writer_of(model, Pair(low="fp16", high="fp32"))
    return _for_folder(subject, writer.write(every, guard_islands=False))


def _for_folder(subject: Subject, typed: TypedGraph) -> TypedGraph:
    """Give inputs and outputs their names there; what exporters noted of their machine goes.

    TensorRT 8.6 and 9 write documentation behind a node's name in the metadata of layers.
    """
    proto = typed.proto
    try:
        call_otherwise(proto.graph, subject.called)
    except UsageError as why:
        raise NotWritable(why.message) from why
    remove_origins(proto, METADATA_PREFIX)
    return typed


def read_manifest(where: Path) -> Manifest:
    """Return what a folder is for. Raises RunFolderError."""
    try:
        return read_typed(Manifest, where / MANIFEST)
    except OSError as error:
        raise RunFolderError(f"cannot read {where / MANIFEST}: {error.strerror}", WHOLE) from error
    except ValueError as error:
        raise RunFolderError(f"{where / MANIFEST} is damaged: {error}", WHOLE) from error


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
