"""The reference from the backend's own engine: every layer in FP32, built once for the run.

It is for models that ONNX Runtime cannot run, such as those with TensorRT's plugins. The engine's
outputs are kept as a file, since another build gives other digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.backends.backend_plugin import choose_backend, pick_backend
from precision_bisect.errors import ModelError, UsageError
from precision_bisect.execution.local_executor import isolated
from precision_bisect.exports.judging import Golden
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.judging.inputs.given_outputs import of_model, read_outputs
from precision_bisect.machine.plain_files import whole
from precision_bisect.options import DEFAULT_CALIBRATION, Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.runs.runfolder import REFERENCE
from precision_bisect.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The outputs of an engine, or how it failed."""

    outputs: Sequence[Sample] = ()
    failure: Outcome | None = None


def engine_outputs(
    options: Options, model: Model, samples: Sequence[Sample], work: Path
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
    engine = replace(options.engine, tf32=False)
    order = replace(options, backend=name, model=model.path, engine=engine, inputs=None)
    # INT8's calibration goes with INT8.
    order = replace(order, low="fp16", high="fp32", ladder=(), calibration=DEFAULT_CALIBRATION)
    folder = work / "reference"
    folder.mkdir()
    ran = (
        run_in_child(order, samples, folder)
        if isolated(order)
        else run_here(order, samples, folder)
    )
    if ran.failure is not None:
        raise ModelError(
            f"--reference engine: {name} cannot build or run the model in FP32: "
            f"{ran.failure.message}",
            "give the FP32 outputs as a file",
        )
    outputs = [of_model(model, each, number) for number, each in enumerate(ran.outputs)]
    with whole(work / REFERENCE) as stream:
        kept = Golden(inputs=(), outputs=outputs, runner=f"{name}-fp32")
        stream.write(kept.outputs_text().encode())
    return outputs


def run_here(order: Options, samples: Sequence[Sample], work: Path) -> Ran:
    """Build and run the engine in this process; `work` is a folder for files."""
    use_custom_ops(order.engine.ort_custom_ops)
    model = load_model(order.model)
    backend = choose_backend(order, samples, work).make(model)
    try:
        with backend.build(Plan.all_high(len(model.table.candidates))) as engine:
            return Ran(outputs=[engine.run(sample) for sample in samples])
    except BackendFailure as failed:
        return Ran(failure=failed.outcome)


def run_in_child(order: Options, samples: Sequence[Sample], work: Path) -> Ran:
    """Build and run the engine in a child process, so that a crash is an outcome."""
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.execution.slot import Death, Limits, Slot

    gpu = order.gpus[0] if order.gpus else None
    slot = Slot(spec=work / "no.spec", folder=work, gpu=gpu)
    try:
        return slot.call_bare(run_here, order, samples, limits=Limits.of(order))
    except Death as death:
        return Ran(failure=death.outcome)
    finally:
        slot.end()
