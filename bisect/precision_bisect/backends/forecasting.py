"""What computes the emulator's forecasts where other backends judge: the CPU or a GPU.

ONNX Runtime's CUDA provider runs the emulator's graph as it is, many times as fast as the CPU
where layers are large. What it computes differs by the order of sums; nothing but the choice of
the next build rests on it.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from precision_bisect.backends.cuda.cuda_check import require_cuda
from precision_bisect.backends.cuda.provider import on_cuda
from precision_bisect.errors import UsageError
from precision_bisect.machine.gpu import devices
from precision_bisect.model.load import Model
from precision_bisect.model.ort import Providers, on_cpu
from precision_bisect.options import Options
from precision_bisect.quantization.scales import Scales

if TYPE_CHECKING:
    from precision_bisect.backends.emulation.emulator import EmulatedBackend

_SHARE = 1 / 4
"""Of a GPU's memory, for all that forecasts on it; builds need the rest."""
_COPIES = 4
"""The weights of both types, and as much for what layers hand on."""
_WORTH_S = 0.1
"""A GPU is worth starting from so many seconds of computation an inference on."""


def settle_forecasts(options: Options, model: Model, seconds: float) -> Options:
    """Return the options with `forecast_on` told, which name the backend.

    By themselves forecasts go to the GPU where child processes build sessions of ONNX Runtime on
    CUDA, the model is small beside the GPU, and large for the CPU, whose cores take `seconds`
    together for one plain inference. Raises UsageError for "cuda" where no build follows a
    forecast, and where trials run in this process or on a cluster; PluginError or RefusedError
    where ONNX Runtime has no CUDA.
    """
    if options.forecast_on == "cuda":
        if options.backend == "emulated":
            raise UsageError(
                "--forecast-on cuda is for runs that build engines, and the emulator judges on "
                "the CPU",
                "leave it out",
            )
        if options.cluster is not None:
            raise UsageError(
                "--forecast-on cuda is for runs on this machine, not on a --cluster",
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
        and options.cluster is None
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
) -> "EmulatedBackend":
    """Return the emulator of a model for the options' pair; raises as `EmulatedBackend` does.

    It computes as the backend does that judges, as far as that is known to differ. With `factors`
    copies of the samples are made inside.
    """
    # It brings in ONNX Runtime, which a process that only plans may not need.
    from precision_bisect.backends.emulation.emulator import EmulatedBackend

    return EmulatedBackend(
        model,
        options.low,
        options.emulator_threads,
        high=options.high,
        scales=scales,
        providers=partial(_gpu, options) if on_gpu else on_cpu,
        stored_sums=stores_sums(options),
        factors=factors,
    )


def stores_sums(options: Options) -> bool:
    """Tell whether the backend computes means as ONNX Runtime's CUDA provider does."""
    return options.backend == "onnxruntime"


def _gpu(options: Options) -> Providers:
    require_cuda()
    return on_cuda(most_bytes=_most_bytes(options))


def _fits(model: Model, options: Options) -> bool:
    weights = sum(array.nbytes for array in model.weights.values())
    most = _most_bytes(options)
    return most is not None and _COPIES * weights <= most


def _most_bytes(options: Options) -> int | None:
    """Return what one session may take of the first GPU; None where there is no GPU."""
    sharing = options.workers if not options.gpus else -(-options.workers // len({*options.gpus}))
    return next((int(gpu.memory_mib * _SHARE / sharing) * 2**20 for gpu in devices()), None)
