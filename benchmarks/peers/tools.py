"""Each tool as a function from a network and a limit to a mixed model, and what that took.

Tools that write a model write it themselves. The searches of Polygraphy and onnxconverter-common
are driven by their own classes, with the emulator as the engine, and rules that are published for
PyTorch or passed on by word are applied to the nodes; of these the plan is written as ours are.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import autocast_env
import numpy as np
import onnx
import onnxruntime as ort
import search_peers
from search_drive import Bench
from search_networks import Emulated, Network

from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.runfolder import MIXED_MODEL, RunFolder
from zoo.judge import Limit, load
from zoo.networks import ROOT

sys.path.append(str(ROOT / "tests"))
from exports_models import export_of
from precision_bisect.exports.write import write_exports

LARGEST = 512.0
"""The `data_max` of AutoCast, and of Torch-TensorRT's rule."""
NORMS = frozenset(
    ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization")
) | {"LpNormalization", "ReduceL2", "ReduceMean", "ReduceSum", "Softmax", "LogSoftmax"}
"""Norms, softmax, and the reductions that they are made of where an exporter took them apart."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prepared network, the folder in it with a tool's samples, a limit, where to write."""

    folder: Path
    inputs: str
    limit: Limit
    bound: float
    out: Path

    @property
    def model(self) -> Path:
        """The FP32 model."""
        return self.folder / "model.onnx"

    @property
    def samples(self) -> Path:
        """The samples that a tool is given."""
        return self.folder / self.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The mixed models by name, and how many evaluations or builds were asked for."""

    models: dict[str, Path]
    evaluations: int | None


class FailedError(Exception):
    """A tool gave no model, for the reason that it gives."""


def ours(job: Job) -> Answer:
    """Run the main command, and export the other points of its curve."""
    command = [sys.executable, "-m", "precision_bisect"]
    words = [str(job.model), f"--{job.limit}", f"{job.bound:g}", "--inputs", str(job.samples)]
    run = job.out / "run"
    _called([*command, *words, "--out", str(run), "--overwrite"], (0, 3))
    models = {"answer": run / MIXED_MODEL}
    for point in ("culprits", "margin"):
        there = job.out / point
        export = [*command, "export", str(run), "--export-point", point, "--out", str(there)]
        if _called(export, (0, 1, 2)) == 0:
            models[point] = there / MIXED_MODEL
    told = json.loads((run / "result.json").read_text())
    return Answer(models=models, evaluations=told["evaluations"])


def autocast(job: Job, *more: str) -> Answer:
    """Run ModelOpt AutoCast on the real inputs."""
    out = job.out / "autocast.onnx"
    words = ["--onnx_path", str(job.model), "--output_path", str(out), "--log_level", "ERROR"]
    words += ["--low_precision_type", "fp16", "--keep_io_types"]
    words += ["--calibration_data", str(next(iter(sorted(job.samples.glob("*.npz")))))]
    (failed,) = autocast_env.convert([[*words, *more]])
    if failed:
        raise FailedError(failed)
    return Answer(models={"": out}, evaluations=0)


def onnxconverter(job: Job) -> Answer:
    """Run `auto_convert_mixed_precision` as it is, with one sample and its own judge."""
    from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision

    # Its own judge adds both up; beside values below 1 that is twice the limit.
    rtol, judged = job.bound if job.limit == "tol" else 0.0, list[int]()

    def validate(exact: Sequence[Any], found: Sequence[Any]) -> bool:
        judged.append(1)
        return all(
            np.allclose(one, other, rtol=rtol, atol=job.bound)
            for one, other in zip(exact, found, strict=True)
        )

    model = auto_convert_mixed_precision(
        onnx.load(job.model), load(job.samples)[0], validate_fn=validate, keep_io_types=True
    )
    out = job.out / "onnxconverter.onnx"
    onnx.save(model, out)
    return Answer(models={"": out}, evaluations=len(judged))


def op_lists(job: Job) -> Answer:
    """Convert with the operators that ONNX Runtime's own converter keeps in FP32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    out = job.out / "op_lists.onnx"
    onnx.save(convert_float_to_float16(onnx.load(job.model), keep_io_types=True), out)
    return Answer(models={"": out}, evaluations=0)


def all_low(job: Job) -> Answer:
    """Keep nothing."""
    return written(job, [])


def norms(job: Job) -> Answer:
    """Keep norms and softmax, as is passed on by word."""
    graph = onnx.load(job.model, load_external_data=False).graph
    return written(job, [node.name for node in graph.node if node.op_type in NORMS])


def torch_tensorrt(job: Job) -> Answer:
    """Keep what stores more than 512, the rule of Torch-TensorRT's autocast."""
    return written(job, list(_beyond(job, LARGEST)))


def by_emulator(job: Job, search: Callable[[int], Search[Plan]]) -> Answer:
    """Search with the emulator as the engine, which has all samples."""
    limits = (job.bound,) * 3
    named = Network(
        model="model.onnx", limit=job.limit, limits=limits, folder=job.folder, inputs=job.inputs
    )
    emulated = Emulated(named, job.folder)
    bench = Bench(judge=emulated.judge(job.bound), size=emulated.problem.size)
    plan = bench.run(search(emulated.problem.size))
    kept = [emulated.problem.names[layer] for layer in sorted(plan.kept)]
    found = written(job, kept)
    return Answer(models=found.models, evaluations=len(bench.calls))


def _polygraphy(
    mode: Literal["bisect", "linear"], direction: Literal["forward", "reverse"]
) -> Callable[[Job], Answer]:
    return lambda job: by_emulator(
        job, lambda size: search_peers.polygraphy(size, mode, direction)
    )


def written(job: Job, kept: Sequence[str]) -> Answer:
    """Write a plan as our exports are; names that are no candidates are left out."""
    export = export_of(job.model, [])
    model = pin_formless(export.model, export.pair)
    known = set(model.table.names)
    plan = [LayerName(one) for one in kept if one in known]
    reason = write_exports(RunFolder(job.out), replace(export, model=model, kept=plan))[
        MIXED_MODEL
    ]
    if reason is not None:
        raise FailedError(reason)
    return Answer(models={"": job.out / MIXED_MODEL}, evaluations=0)


def _beyond(job: Job, largest: float) -> Iterator[str]:
    """Yield the layers with an output that is larger in some sample."""
    model, proto = load_model(job.model), onnx.load(job.model)
    given = {value.name for value in proto.graph.output}
    floats = [
        name
        for layer in model.table.layers
        for name in layer.outputs
        if name not in given and model.elem_types.get(name) == _FLOAT
    ]
    made = {name for node in proto.graph.node for name in node.output}
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, _FLOAT, None) for name in floats if name in made
    )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    large = set[str]()
    for sample in load(job.samples):
        for name, value in zip(names, session.run(None, dict(sample)), strict=True):
            if value.dtype.kind == "f" and value.size and float(np.abs(value).max()) > largest:
                large.add(name)
    yield from (layer.name for layer in model.table.layers if not large.isdisjoint(layer.outputs))


def _called(command: Sequence[str], allowed: Sequence[int]) -> int:
    """Run a command of ours. Raises FailedError where it ends otherwise."""
    paths = [str(ROOT / root) for root in ("bisect", "strategies", "reports")]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode not in allowed:
        raise FailedError(ended.stderr.strip().rpartition("\n")[2][:300])
    return ended.returncode


TOOLS: dict[str, Callable[[Job], Answer]] = {
    "precision-bisect": ours,
    "AutoCast": autocast,
    "AutoCast, data_max 65504": lambda job: autocast(job, "--data_max", "65504"),
    "onnxconverter-common": onnxconverter,
    "onnxconverter-common, our judge": lambda job: by_emulator(job, search_peers.onnxconverter),
    "Polygraphy bisect, forward": _polygraphy("bisect", "forward"),
    "Polygraphy bisect, reverse": _polygraphy("bisect", "reverse"),
    "Polygraphy linear, forward": _polygraphy("linear", "forward"),
    "Polygraphy linear, reverse": _polygraphy("linear", "reverse"),
    "ONNX Runtime's operator list": op_lists,
    "Torch-TensorRT's rule": torch_tensorrt,
    "norms and softmax": norms,
    "nothing": all_low,
}
