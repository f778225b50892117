"""What judges the exported model where it is deployed: samples, a script, a command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from precision_bisect.exports.export import Export
from precision_bisect.exports.fitting import Unfit, stored_samples
from precision_bisect.exports.golden import golden_of
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.exports.polygraphy_command import METRICS, polygraphy_command
from precision_bisect.exports.run_script import of_plan, write_run_script
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.protocols import Sample
from precision_bisect.results.deployment import Deployment, SessionOptions
from precision_bisect.run_folder.runfolder import (
    GOLDEN_INPUTS,
    GOLDEN_OUTPUTS,
    JUDGING,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What a run judged its answer by.

    `limits` are the comparator's settings, `backend` is what computed, and `options` how ONNX
    Runtime opens the model.
    """

    samples: Sequence[Sample]
    reference: Sequence[Sample]
    limits: Mapping[str, Any]
    backend: str
    options: SessionOptions


def write_judging(
    folder: RunFolder, export: Export, judge: Judge, graph: onnx.GraphProto | None
) -> tuple[Mapping[str, str | None], Deployment | None]:
    """Write golden inputs and outputs, and the script that judges by them.

    `graph` is the exported one, None where there is none. Returns for each file why it could not
    be written, or None, and how the answer is deployed, None where nothing can judge it. Raises
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
        script = write_run_script(export, judge.options, judge.limits, judge.backend)
    except NotWritable as reason:
        for name in JUDGING:
            folder.remove(name)
        return dict.fromkeys(JUDGING, str(reason)), None
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
        with quiet(), without_torch():
            inputs, outputs = stored_samples(run)
        _not_rounded(graph, [*inputs, *outputs])
        golden = golden_of(graph, inputs, outputs)
    except UnicodeDecodeError:
        return dict.fromkeys(JUDGING, f"{RUN_SCRIPT} of the run is no text; a new run writes it")
    except (OSError, NotWritable, Unfit) as reason:
        return dict.fromkeys(JUDGING, str(reason))
    folder.write(GOLDEN_INPUTS, golden.inputs_text())
    folder.write(GOLDEN_OUTPUTS, golden.outputs_text())
    folder.write(RUN_SCRIPT, of_plan(script, export))
    return dict.fromkeys(JUDGING)


def _not_rounded(graph: onnx.GraphProto, stored: Sequence[Sample]) -> None:
    """Raise NotWritable where samples were stored in FP16, and the graph has more digits."""
    for value in (*graph.input, *graph.output):
        halves = any(each[value.name].itemsize == 2 for each in stored if value.name in each)
        if halves and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            raise NotWritable(
                f"the run stored {value.name!r} in FP16, give --io-types fp16 or run it again"
            )


def _command(export: Export, judge: Judge, inputs: Sequence[Sample]) -> str | None:
    """Return the command by which Polygraphy judges, None where it cannot by these limits."""
    try:
        return polygraphy_command(export.model, export.settings, judge.limits, inputs)
    except NotWritable:
        return None
