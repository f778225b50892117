"""One build in a process of its own, which has limits: of a finished run's plan, or of FP32.

FP32's is the reference for models that ONNX Runtime cannot run, such as those with TensorRT's
plugins. The engine's outputs are kept as a file, since another build gives other digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from precision_bisect.backends.backend_plugin import (
    BackendTask,
    Message,
    backend_plugin,
    choose_backend,
    choose_builder,
    pick_backend,
)
from precision_bisect.backends.tensorrt.log import LAYERS_HEADING
from precision_bisect.errors import InputError, ModelError, RefusedError, UsageError
from precision_bisect.execution.child import tail
from precision_bisect.execution.local_executor import isolated
from precision_bisect.execution.slot import Death, Limits, Slot
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.exports.judging import Golden
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.judging.inputs.loops import Loop
from precision_bisect.judging.inputs.reference import of_model, read_outputs
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.machine.plain_files import whole
from precision_bisect.options import DEFAULT_CALIBRATION, Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Engine, Sample
from precision_bisect.runs.results.verification import EngineFacts
from precision_bisect.runs.runfolder import REFERENCE
from precision_bisect.search.evaluation import with_engine
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Evidence, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build: the plan of `result` for the model, or with `plain` every layer in FP32."""

    model: Path
    result: Path
    backend: str
    settings: EngineSettings
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBuild:
    """What became of a build; `failure` is how it failed, if it did.

    `engine` are the library's own words on the engine's layers, `log` its messages and what its
    process printed; either may be "". `facts` are of engines that tell them.
    """

    evidence: Evidence = field(default_factory=Evidence)
    failure: Outcome | None = None
    engine: str = ""
    log: str = ""
    facts: EngineFacts | None = None


def build_once(order: Order, limits: Limits, work: Path) -> OneBuild:
    """Build in a child process; `work` is a folder for files. What ends the child is a failure.

    Where CUDA failed or its memory was full, another child tries once more, as in a search. Raises
    the PrecisionBisectErrors of `build_here`, and RunFolderError.
    """
    built = _build_in_child(order, limits, work)
    if built.failure is None or not built.failure.retry:
        return built
    again = _build_in_child(order, limits, work)
    return replace(
        again, log=f"{built.log}\nonce more, after {built.failure.message}:\n{again.log}"
    )


def _build_in_child(order: Order, limits: Limits, work: Path) -> OneBuild:
    slot = Slot(spec=work / "no.spec", folder=work / ("plain" if order.plain else "plan"))
    try:
        built = slot.call_bare(build_here, order, limits=limits)
    except Death as death:
        built = OneBuild(failure=death.outcome)
    finally:
        slot.end()
    printed = tail(slot.log).decode("utf-8", errors="replace")
    return replace(built, log=built.log + printed)


def build_here(order: Order, work: Path) -> OneBuild:
    """Build in this process and look into the engine; `work` is an empty folder.

    Raises a PrecisionBisectError for bad input, and where nothing here can build engines. A build
    that fails is a finding, not an error.
    """
    use_custom_ops(order.settings.ort_custom_ops)
    searched_model = load_model(order.model).with_io_types(order.settings.io_types)
    finished = read_finished(order.result, searched_model)
    model = finished.model
    # What the run's machine had may be missing here, so the backend is chosen anew.
    builder = choose_builder(order.backend, order.settings, finished.pair.low)
    subject = finished.in_fp32() if order.plain else finished
    searched = subject.with_pinned(model)
    options = Options(
        model=model.path,
        backend=builder.name,
        low=subject.pair.low,
        high=subject.pair.high,
        engine=builder.settings,
    )
    task = BackendTask(
        options=options, shapes=subject.shapes, work=work, scales=subject.scales(), timed=True
    )
    plan = searched.table.plan_of(subject.kept)
    with builder.listening() as messages:
        backend = backend_plugin(builder.name).make(task)(searched)
        built = with_engine(backend, plan, lambda engine: seen(engine, model, finished))
    log = _log(messages)
    return (
        OneBuild(failure=built, log=log) if isinstance(built, Outcome) else replace(built, log=log)
    )


def seen(engine: Engine, model: Model, finished: Finished) -> OneBuild:
    """Return what an engine shows, the library's words on it, and what its layers add up to.

    A look that fails is a remark. Raises BackendFailure where it fails and nothing is kept that
    would then not show.
    """
    evidence, words = Evidence(), ""
    facts: EngineFacts | None = None
    try:
        evidence = looked_into(engine, model, finished) if finished.high else engine.evidence()
        if isinstance(engine, _Described):
            words, facts = engine.description(), engine.facts()
    except BackendFailure as failed:
        if not finished.high:
            raise
        note = f"the engine was built, and a look into it failed: {failed.outcome.message}"
        evidence = replace(evidence, notes=(*evidence.notes, note))
    return OneBuild(evidence=evidence, engine=words, facts=facts)


def looked_into(engine: Engine, model: Model, finished: Finished) -> Evidence:
    """Return what an engine shows; where that is nothing, it runs once on made-up inputs.

    ONNX Runtime shows its kernels only then. Raises BackendFailure.
    """
    evidence = engine.evidence()
    if evidence.honours:
        return evidence
    all_shapes = {name: of_input[0] for name, of_input in finished.shapes.items()}
    # Of an input that gives a shape the run has noted the values.
    values = shape_inputs(model.proto.graph, model.inputs)
    shapes = {name: shape for name, shape in all_shapes.items() if name not in values}
    try:
        sample = {**synthetic_samples(model, shapes, count=1, seed=0)[0]}
        for name in values & all_shapes.keys():
            like = sample[name]
            sample[name] = np.array(all_shapes[name], like.dtype).reshape(like.shape)
        engine.run(sample)
    except (InputError, RefusedError):
        return evidence
    return engine.evidence()


@runtime_checkable
class _Described(Protocol):
    """An engine of which its library says something."""

    def facts(self) -> EngineFacts | None: ...

    def description(self) -> str: ...


def _log(messages: Sequence[Message]) -> str:
    """Return the library's messages, one after the other; that of the layers is kept elsewhere."""
    loud = (message for message in messages if not message.text.startswith(LAYERS_HEADING))
    return "".join(f"[{message.severity}] {message.text.strip()}\n" for message in loud)


def engine_outputs(
    options: Options, model: Model, samples: Sequence[Sample], work: Path, loop: Loop
) -> list[Sample]:
    """Return the outputs of an engine with every layer in FP32 on the samples.

    They are written to the folder `work`; a resumed run reads what it wrote before. Raises
    ModelError where the engine fails, UsageError where there is none, and what the backend raises.
    """
    had = options.folder / REFERENCE
    if options.resume and had.exists():
        return read_outputs(had, model, len(samples))
    name = "emulated" if options.elsewhere else pick_backend(options)[0]
    if name == "emulated":
        raise UsageError(
            "--reference engine needs a backend that builds engines on this machine",
            "choose --backend onnxruntime, tensorrt or tensorrt-rtx, and no --executor elsewhere, "
            "or give the outputs as a file",
        )
    # A reference with TF32 would have 10 bits of mantissa, as FP16 has.
    engine = replace(options.engine, tf32="off", io_types="model")
    order = replace(options, backend=name, model=model.path, engine=engine, inputs=None)
    # INT8's calibration goes with INT8.
    order = replace(order, low="fp16", high="fp32", ladder=(), calibration=DEFAULT_CALIBRATION)
    folder = work / "reference"
    folder.mkdir()
    ran = (run_in_child if isolated(order) else run_here)(order, samples, loop, folder)
    if isinstance(ran, Outcome):
        raise ModelError(
            f"--reference engine: {name} cannot build or run the model in FP32: {ran.message}",
            "give the FP32 outputs as a file",
        )
    outputs = [of_model(model, sample, number) for number, sample in enumerate(ran)]
    with whole(work / REFERENCE) as stream:
        kept = Golden(inputs=(), outputs=outputs, runner=f"{name}-fp32")
        stream.write(kept.outputs_text().encode())
    return outputs


def run_here(
    order: Options, samples: Sequence[Sample], loop: Loop, work: Path
) -> list[Sample] | Outcome:
    """Return an engine's outputs, or how it failed, in this process; `work` is for files."""
    use_custom_ops(order.engine.ort_custom_ops)
    model = load_model(order.model)
    backend = choose_backend(order, samples, work).make(model)
    everything = Plan.all_high(len(model.table.candidates))
    return with_engine(
        backend, everything, lambda engine: [loop(engine.run, sample) for sample in samples]
    )


def run_in_child(
    order: Options, samples: Sequence[Sample], loop: Loop, work: Path
) -> list[Sample] | Outcome:
    """Return the same of a child process, so that a crash is an outcome."""
    gpu = order.gpus[0] if order.gpus else None
    slot = Slot(spec=work / "no.spec", folder=work, gpu=gpu)
    try:
        return slot.call_bare(run_here, order, samples, loop, limits=Limits.of(order))
    except Death as death:
        return death.outcome
    finally:
        slot.end()
