"""What judges the exported model where it is deployed: samples, a script, a command.

The samples, and what FP32 makes of them, are in Polygraphy's JSON: it reads them by --load-inputs
and --load-outputs, `run_onnxruntime.py` by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.cuda.provider import CUDA, deployed_provider
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.fitting_files import Unfit, stored_samples
from precision_bisect.exports.one_file import one_file
from precision_bisect.exports.polygraphy_command import polygraphy_command
from precision_bisect.judging.comparators.metrics import METRICS
from precision_bisect.judging.inputs.loops import PLAIN, Loop, ScriptLoop
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.deployment import Deployment, SessionOptions
from precision_bisect.runs.runfolder import (
    GOLDEN_INPUTS,
    GOLDEN_OUTPUTS,
    JUDGING,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)

# The line of the template, `run_onnxruntime.py`, that is filled in.
_SETTINGS = "SETTINGS: dict[str, Any] = {}\n"
_LOW_LAYERS, _PROVIDER_OPTIONS = "low_layers", "provider_options"
_HALVES = ("fp16", "bf16")
MOST_GOLDEN_SAMPLES = 16
MOST_GOLDEN_BYTES = 64 * 2**20
"""Of all arrays together; as text they take a third more."""
RUNNER = "onnxruntime-fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Samples and their FP32 outputs, in the types of the exported model's inputs and outputs.

    `runner` is what Polygraphy calls the run that gave the outputs.
    """

    inputs: Sequence[Sample]
    outputs: Sequence[Sample]
    runner: str = RUNNER

    @quiet()
    @without_torch()
    def inputs_text(self) -> str:
        """Return the inputs as `--load-inputs` reads them."""
        from polygraphy.json import to_json

        text: str = to_json([dict(sample) for sample in self.inputs])
        return text

    @quiet()
    @without_torch()
    def outputs_text(self) -> str:
        """Return the outputs as `--load-outputs` reads them."""
        from polygraphy.comparator import RunResults

        results = RunResults()
        results.add([dict(sample) for sample in self.outputs], runner_name=self.runner)
        text: str = results.to_json()
        return text


def golden_of(
    graph: onnx.GraphProto, samples: Sequence[Sample], reference: Sequence[Sample]
) -> Golden:
    """Return as many of the first samples as may be stored, and what FP32 makes of them.

    `graph` is the exported one. Raises NotWritable for text, for types that numpy does not have or
    that do not hold the values, and where one sample is too large.
    """
    takes = {value.name: _dtype(value) for value in graph.input}
    gives = {value.name: _dtype(value) for value in graph.output}
    inputs: list[Sample] = []
    outputs: list[Sample] = []
    room = MOST_GOLDEN_BYTES
    for feed, wanted in zip(samples, reference, strict=True):
        pair = _cast(feed, takes), _cast(wanted, gives)
        # Whole samples only: part of one judges nothing.
        room -= sum(array.nbytes for side in pair for array in side.values())
        if room < 0 or len(inputs) == MOST_GOLDEN_SAMPLES:
            break
        inputs.append(pair[0])
        outputs.append(pair[1])
    if not inputs:
        raise NotWritable(f"one sample has more than {MOST_GOLDEN_BYTES // 2**20} MiB")
    return Golden(inputs=inputs, outputs=outputs)


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """Return the numpy type of a graph's input or output. Raises NotWritable."""
    kind = value.type.tensor_type.elem_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, TypeError) as error:
        raise NotWritable(f"{value.name!r} has a type that arrays cannot have") from error
    if dtype.kind not in "fiubc":
        what = "text" if dtype.kind == "O" else f"{dtype.name}, which Polygraphy cannot store"
        raise NotWritable(f"{value.name!r} is {what}")
    return dtype


def _cast(sample: Sample, types: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays that have a type there, in that type. Raises NotWritable outside of it."""
    cast = {}
    for name in (name for name in sample if name in types):
        array = np.ascontiguousarray(sample[name]).reshape(sample[name].shape)
        with np.errstate(over="ignore"):
            cast[name] = array.astype(types[name], copy=False)
        if array.dtype.kind == "f" and (np.isfinite(array) & ~np.isfinite(cast[name])).any():
            raise NotWritable(
                f"{name!r} has values beyond the range of {types[name].name}, which the exported "
                "model takes and gives; leave out --io-types"
            )
    return cast


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What a run judged its answer by.

    `limits` are the comparator's settings, `backend` is what computed, and `options` how ONNX
    Runtime opens the model. A `loop` runs each sample.
    """

    samples: Sequence[Sample]
    reference: Sequence[Sample]
    limits: Mapping[str, Any]
    backend: str
    options: SessionOptions
    loop: Loop = PLAIN


def write_judging(
    folder: RunFolder, export: Export, judge: Judge, graph: onnx.GraphProto | None
) -> tuple[Mapping[str, str | None], Deployment | None]:
    """Write golden inputs and outputs, and the script that judges by them.

    `graph` is the exported one, None where there is none. Returns for each file why it could not
    be written, or None, and how the answer is deployed, None without a graph. Raises
    RunFolderError.
    """
    try:
        if graph is None:
            raise NotWritable(f"there is no {MIXED_MODEL}")
        metric = judge.limits.get("metric", "of the run")
        if metric not in METRICS and "check" not in judge.limits:
            raise NotWritable(
                f"the metric {metric} is a plug-in's, which a script on the target does not have; "
                "a run with --check FILE.py:FUNCTION writes one"
            )
        golden = golden_of(graph, judge.samples, judge.reference)
        script = write_run_script(export, judge)
    except NotWritable as reason:
        # Files of an earlier run in this folder would judge another plan.
        for name in JUDGING:
            folder.remove(name)
        deployment = None if graph is None else Deployment.by(judge.options)
        return dict.fromkeys(JUDGING, str(reason)), deployment
    folder.write(GOLDEN_INPUTS, golden.inputs_text())
    folder.write(GOLDEN_OUTPUTS, golden.outputs_text())
    folder.write(RUN_SCRIPT, script)
    deployment = Deployment.by(
        judge.options,
        samples=len(golden.inputs),
        samples_total=len(judge.samples),
        polygraphy=_command(export, judge, golden.inputs),
    )
    return dict.fromkeys(JUDGING), deployment


def carry_judging(run: Path, folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Have what judges a run in another folder as well, for the plan that is exported there.

    Stored samples get the types of the model there. Says what the run does not have, or what
    cannot be read. Raises RunFolderError.
    """
    if not all((run / name).is_file() for name in JUDGING):
        return dict.fromkeys(JUDGING, "the run has left none; a new run writes it")
    try:
        script = (run / RUN_SCRIPT).read_text(encoding="utf-8")
        graph = onnx.load(folder.path / MIXED_MODEL, load_external_data=False).graph
        inputs, outputs = stored_samples(run)
        # A point of another interface reads other types than the run's own file.
        golden = golden_of(graph, inputs, outputs)
    except UnicodeDecodeError:
        return dict.fromkeys(JUDGING, f"{RUN_SCRIPT} of the run is no text; a new run writes it")
    except (OSError, NotWritable, Unfit) as reason:
        return dict.fromkeys(JUDGING, str(reason))
    folder.write(GOLDEN_INPUTS, golden.inputs_text())
    folder.write(GOLDEN_OUTPUTS, golden.outputs_text())
    folder.write(RUN_SCRIPT, _of_plan(script, export))
    return dict.fromkeys(JUDGING)


def _command(export: Export, judge: Judge, inputs: Sequence[Sample]) -> str | None:
    """Return the command by which Polygraphy judges, None where it cannot so."""
    if not judge.loop.plain:
        return None
    try:
        return polygraphy_command(export.model, export.settings, judge.limits, inputs)
    except NotWritable:
        return None


def write_run_script(export: Export, judge: Judge) -> str:
    """Return the script that opens the exported model with the judge's options and judges it."""
    options = judge.options
    settings = {
        "judged_by": _judged_by(judge.backend),
        "model": MIXED_MODEL,
        "inputs": GOLDEN_INPUTS,
        "outputs": GOLDEN_OUTPUTS,
        "provider": CUDA,
        _PROVIDER_OPTIONS: dict(options.provider_options),
        "session_config": dict(options.session_config),
        "graph_optimization_level": options.graph_optimization_level,
        "disabled_optimizers": list(options.disabled_optimizers),
        "limits": dict(judge.limits),
        "loop": _loop(judge.loop),
        "custom_ops": [str(path.absolute()) for path in export.settings.ort_custom_ops],
        _LOW_LAYERS: _low_layers(export),
    }
    literals = "".join(_line(key, value) for key, value in settings.items())
    return one_file(RUN_SCRIPT, {_SETTINGS: f"{{\n{literals}}}"})


def _loop(loop: Loop) -> Mapping[str, Any]:
    """Return how the script runs a sample, {} for once. Raises NotWritable."""
    if not loop.sendable:
        raise NotWritable("the function of --loop is in no file")
    if isinstance(loop, ScriptLoop):
        return {"script": str(loop.path), "function": loop.name}
    return {} if loop.plain else loop.settings()


def _of_plan(script: str, export: Export) -> str:
    """Return a script that judges the plan of an export as it has judged another plan.

    A plan may have been judged with TF32, and another of the same run without.
    """
    settings, own = export.settings, export.settings.ort_options
    changed = {
        _LOW_LAYERS: _low_layers(export),
        _PROVIDER_OPTIONS: deployed_provider(tf32=settings.in_tf32, own=own),
    }
    lines = {_line(key, "").partition(":")[0]: _line(key, value) for key, value in changed.items()}
    return "".join(
        lines.get(line.partition(":")[0], line) for line in script.splitlines(keepends=True)
    )


def _low_layers(export: Export) -> list[str]:
    return [str(name) for name, kind in export.precisions.items() if kind in _HALVES]


def _line(key: str, value: object) -> str:
    return f"    {key!a}: {value!a},\n"


def _judged_by(backend: str) -> str:
    """Return what the script says of the verdicts that its options stand for."""
    if backend == "onnxruntime":
        return "onnxruntime: these options judged the answer"
    return f"{backend}: the answer was not judged by these options, which are this tool's for CUDA"
