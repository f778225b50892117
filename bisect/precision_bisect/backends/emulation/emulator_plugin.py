"""The emulator as a backend, and as what forecasts while other backends judge.

Forecasts are computed by the CPU or a GPU. ONNX Runtime's CUDA provider runs the emulator's graph
as it is, many times as fast as the CPU if layers are large. Its results differ by the order of
sums. That is no harm: a forecast only decides what is built next.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.cuda.provider import CUDA, emulating, on_cuda, require_cuda
from precision_bisect.errors import RefusedError, UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import Providers, are_packed, on_cpu
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.judging.inputs.copies import can_change
from precision_bisect.machine.gpu import devices
from precision_bisect.options import Options
from precision_bisect.precisions import LowName
from precision_bisect.protocols import Backend
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import DEFAULT_TARGETS, TARGETS, TargetName

if TYPE_CHECKING:
    from precision_bisect.backends.emulation.emulator import EmulatedBackend


# Share of a GPU's memory for all processes that forecast on it; builds need the rest. A limit on
# memory.
_SHARE = 1 / 4
# Multiples of the model's weights that a session is taken to need: those of both types, and as
# much for values between layers.
_COPIES = 4
LAYER_BYTES = 5e4
"""What a session of the emulator takes for each layer beside its values: 109 MB for 2,000 layers
of benchmarks/large_model.py."""
LATE_BYTES = 2**27
"""Bytes from which a session opens with the first plan that needs it, and FP32 in TF32, which is
judged before, has the memory to itself. A limit on memory."""
# Seconds of a plain inference on all CPU cores, from which a GPU is worth its start: it takes a
# tenth for MiniLM (`benchmarks/results/engine/forecasts.json`), so 213 forecasts save 19 s.
_WORTH_S = 0.1


def choose_forecasts(options: Options, model: Model, seconds: float) -> Options:
    """Return the options, which name the backend, with `forecast_on` decided.

    By default forecasts go to the GPU if child processes build sessions of ONNX Runtime on CUDA,
    and the model is small for the GPU and large for the CPU. `seconds` is one plain inference on
    all cores together. Raises UsageError for "cuda" if no build follows a forecast, or if trials
    run in this process or elsewhere; PluginError or RefusedError where ONNX Runtime has no CUDA.
    """
    if options.forecast_on == "cuda":
        if options.backend == "emulated":
            raise UsageError(
                "--forecast-on cuda is for runs that build engines, and the emulator judges on "
                "the CPU",
                "leave it out",
            )
        if options.elsewhere:
            raise UsageError(
                "--forecast-on cuda is for trials on this machine, not for --executor "
                f"{options.executor}",
                "leave it out",
            )
        if options.isolate == "never":
            raise UsageError(
                "--forecast-on cuda needs child processes: beside what is timed, a session of the "
                "emulator would spoil the latency",
                "leave out --isolate never",
            )
        require_cuda()
        return options
    on_gpu = (
        options.forecast_on == "auto"
        and options.backend == "onnxruntime"
        and not options.elsewhere
        and options.isolate != "never"
        and seconds >= _WORTH_S
        and _fits(model, options)
    )
    return replace(options, forecast_on="cuda" if on_gpu else "cpu")


def forecaster(
    model: Model,
    options: Options,
    scales: Scales,
    *,
    on_gpu: bool = False,
    factors: bool = False,
    few: bool = False,
    late: bool = False,
    tf32: bool = False,
) -> "EmulatedBackend":
    """Return the emulator of a model for the options' pair; raises as `EmulatedBackend` does.

    It computes as the options' targets do. With `factors` copies of the samples are made inside.
    `few`, `late` and `tf32` are as there.
    """
    # Imported here: ONNX Runtime is of no use to a process that only plans.
    from precision_bisect.backends.emulation.emulator import EmulatedBackend

    return EmulatedBackend(
        model,
        options.low,
        options.emulator_threads,
        high=options.high,
        scales=scales,
        providers=partial(_gpu, options) if on_gpu else on_cpu,
        targets=options.targets,
        factors=factors,
        # TF32 has few plans, which gain little from segments. Where sessions pack no weights these
        # take less memory and time to open.
        whole=tf32 and are_packed(len(model.proto.graph.node), total_bytes(model.weights)),
        few=few,
        # A whole search in TF32 has many plans.
        alone=tf32,
        late=late,
        tf32=tf32 or options.engine.in_tf32,
    )


def opens_late(model: Model) -> bool:
    """Tell whether sessions of all plans of a model are so large that they open late."""
    nodes = LAYER_BYTES * len(model.table.layers)
    return total_bytes(model.weights) + nodes > LATE_BYTES


def choose_target(options: Options, unknown_to: Collection[TargetName] = ()) -> Options:
    """Return the options, which name the backend, with `target` decided.

    A backend is its own target. The emulator predicts the first engine that is installed here, of
    TensorRT, TensorRT-RTX and ONNX Runtime on CUDA, and TensorRT where none is. Engines that the
    model's operators are `unknown_to` come last.
    """
    if options.target != "auto" or options.backend != "emulated":
        return options
    ordered = (*_installed(), *DEFAULT_TARGETS, *TARGETS)
    targets = (target for target in ordered if target not in unknown_to)
    return replace(options, target=next(targets, ordered[0]))


def _installed() -> Iterator[TargetName]:
    # Imported here: other backends need none of it.
    from precision_bisect.backends.tensorrt.flavour import NAMES, absent
    from precision_bisect.graphs.ort import runtime

    yield from (name for name in NAMES if not absent(name))
    if CUDA in runtime().get_available_providers():
        yield "onnxruntime"


def _gpu(options: Options) -> Providers:
    require_cuda()
    return on_cuda(emulating(), most_bytes=_most_bytes(options))


def _fits(model: Model, options: Options) -> bool:
    weights = total_bytes(model.weights)
    most = _most_bytes(options)
    return most is not None and _COPIES * weights <= most


def _most_bytes(options: Options) -> int | None:
    """Return the bytes that one session may take of the first GPU; None without a GPU."""
    # With several GPUs the workers share them evenly, rounded up.
    sharing = options.workers if not options.gpus else -(-options.workers // len({*options.gpus}))
    return next((int(gpu.memory_mib * _SHARE / sharing) * 2**20 for gpu in devices()), None)


class EmulatorPlugin:
    """See `BackendPlugin`."""

    def availability(self) -> Availability:
        """Return that it works."""
        return Availability(name="emulated", usable=True, why="predicts on any machine")

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the emulator of a model."""
        options = choose_target(replace(task.options, backend="emulated"))
        # Copies are made inside if no sample has a float input to change.
        factors = options.copies > 0 and not can_change(task.samples)

        def emulator(model: Model) -> Backend:
            late = opens_late(model)
            return forecaster(model, options, task.scales, factors=factors, late=late)

        return emulator

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Raise RefusedError: it builds nothing to look into."""
        raise RefusedError("the emulator builds no engine", "name another --backend")


EMULATOR = EmulatorPlugin()
