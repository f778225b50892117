"""Which backend builds or runs plans: the one asked for, or the most real one that can."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from precision_bisect.backends.forecasting import forecaster
from precision_bisect.backends.tensorrt.eight_bit_layers import FP8_CAPABILITY
from precision_bisect.backends.tensorrt.flavour import (
    NAMES,
    Flavour,
    FlavourName,
    absent,
    installed,
    load_flavour,
)
from precision_bisect.backends.tensorrt.log import Message, collected
from precision_bisect.backends.tensorrt.starting import why_not_started
from precision_bisect.errors import PluginError, RefusedError
from precision_bisect.inputs.copies import can_change
from precision_bisect.model.load import Model
from precision_bisect.options import BackendName, Options
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import Backend, Sample
from precision_bisect.quantization.scales import Scales
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.typed.rewrite import TypedWriter

NO_SCALES = Scales()
DEFAULT_CAPABILITY = "8.6"
"""What an engine is built for where no GPU can run it and nothing else is asked."""

MakeBackend: TypeAlias = Callable[[Model], Backend]
SampleShapes: TypeAlias = Mapping[str, Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend can run plans on this machine, and why or why not, in one sentence.

    `builds` tells whether it can at least build engines, which `verify` needs.
    """

    name: BackendName
    usable: bool
    why: str
    builds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend that was chosen, how to make it for a model, and why it is the one."""

    name: BackendName
    make: MakeBackend
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """What builds engines to look into, without running them; `remark` is for people.

    In the context of `listening` the library's messages appear in a list, if it has any.
    """

    name: BackendName
    remark: str
    make: Callable[[TypedWriter, SampleShapes, Path], Backend]
    listening: Callable[[], AbstractContextManager[Sequence[Message]]] = lambda: nullcontext(())


def availabilities() -> list[Availability]:
    """Return every backend in the order in which `auto` takes them.

    A TensorRT library counts as usable only where this machine's GPU can run its engines.
    """
    return [
        *(_tensorrt(name) for name in NAMES),
        _cuda(),
        Availability(name="emulated", usable=True, why="predicts on any machine"),
    ]


def choose_backend(
    options: Options,
    samples: Sequence[Sample],
    work: Path,
    *,
    scales: Scales = NO_SCALES,
) -> Chosen:
    """Return the backend that the options ask for; `work` is an empty folder for its files.

    `scales` are those of what some plan quantizes. Raises as `pick_backend` does.
    """
    name, why = pick_backend(options)
    return Chosen(name=name, make=_maker(name, options, samples, work, scales), why=why)


def pick_backend(options: Options) -> tuple[BackendName, str]:
    """Return the name of the backend that the options ask for, and why it is the one.

    Raises RefusedError when it was asked for by name and cannot run here, with the reason.
    """
    if options.backend == "emulated":
        return "emulated", ""
    found = availabilities()
    taken = next(
        entry
        for entry in found
        if entry.name == options.backend or (options.backend == "auto" and entry.usable)
    )
    if not taken.usable:
        raise RefusedError(
            f"--backend {taken.name} cannot run plans here: {taken.why}",
            "`precision-bisect doctor` says what can; `verify` builds without running",
        )
    passed_over = found[: found.index(taken)] if options.backend == "auto" else ()
    return taken.name, "; ".join(f"{entry.name}: {entry.why}" for entry in passed_over)


def choose_builder(name: str, settings: EngineSettings, low: LowName = "fp16") -> Builder:
    """Return what builds engines with `low` here; `auto` takes the first TensorRT that can build.

    Raises PluginError where it is not installed, RefusedError where ONNX Runtime has no GPU.
    """
    if name == "onnxruntime":
        return _cuda_builder(settings)
    wanted = [flavour for flavour in installed() if name in ("auto", flavour.name)]
    wanted.sort(key=lambda flavour: not _can_build(flavour))
    if not wanted:
        what = "neither TensorRT nor TensorRT-RTX is" if name == "auto" else f"{name} is not"
        raise PluginError(
            f"{what} installed, so no engine can be built",
            "pip install tensorrt_rtx, which builds without a GPU, too",
        )
    return _tensorrt_builder(wanted[0], settings, low)


def sample_shapes(samples: Sequence[Sample]) -> SampleShapes:
    """Return the shapes that each input takes over all samples, each once."""
    shapes: dict[str, dict[tuple[int, ...], None]] = {}
    for sample in samples:
        for name, array in sample.items():
            shapes.setdefault(name, {})[array.shape] = None
    return {name: list(found) for name, found in shapes.items()}


def _tensorrt(name: FlavourName) -> Availability:
    try:
        flavour = load_flavour(name)
    except PluginError as error:
        why = error.message if absent(name) else error.one_line()
        return Availability(name=name, usable=False, why=why)
    if flavour.can_run and (trouble := why_not_started(name)):
        return Availability(name=name, usable=False, why=trouble)
    why = f"{flavour.version} on {flavour.device}" if flavour.can_run else flavour.why_not
    return Availability(name=name, usable=flavour.can_run, why=why, builds=_can_build(flavour))


def _can_build(flavour: Flavour) -> bool:
    """Return whether engines can be built here: for this machine's GPU, or without it."""
    return flavour.can_run or bool(flavour.targets)


def _cuda() -> Availability:
    from precision_bisect.backends.cuda.cuda_backend import why_not

    trouble = why_not()
    return Availability(
        name="onnxruntime", usable=trouble is None, why=trouble or "CUDA computes FP16"
    )


def _cuda_builder(settings: EngineSettings) -> Builder:
    from precision_bisect.backends.cuda.cuda_backend import CudaBackend, why_not

    if trouble := why_not():
        raise RefusedError(
            f"--backend onnxruntime cannot build here: {trouble}",
            "`precision-bisect doctor` says what can",
        )
    return Builder(
        name="onnxruntime",
        remark="",
        make=lambda writer, shapes, work: CudaBackend(writer, settings, work),
    )


def _tensorrt_builder(flavour: Flavour, settings: EngineSettings, low: LowName) -> Builder:
    from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend

    remark = f"{flavour.version}, "
    if settings.compute_capability is None and flavour.targets and not flavour.can_run:
        default = FP8_CAPABILITY if low == "fp8" else DEFAULT_CAPABILITY
        settings = replace(settings, compute_capability=default)
    target = settings.compute_capability
    remark += f"built for compute capability {target}" if target else f"built for {flavour.device}"
    if not flavour.can_run:
        remark += f"; it cannot run here: {flavour.why_not}"
    return Builder(
        name=flavour.name,
        remark=remark,
        make=lambda writer, shapes, work: TensorRTBackend(writer, settings, flavour, shapes, work),
        listening=lambda: collected(flavour),
    )


def _maker(
    name: BackendName, options: Options, samples: Sequence[Sample], work: Path, scales: Scales
) -> MakeBackend:
    if name == "emulated":
        factors = options.copies > 0 and not can_change(samples)
        return lambda model: forecaster(model, options, scales, factors=factors)
    pair = Pair(low=options.low, high=options.high)
    if name == "onnxruntime":
        from precision_bisect.backends.cuda.cuda_backend import CudaBackend

        return lambda model: CudaBackend(TypedWriter(model, pair, scales), options.engine, work)
    from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend

    flavour = load_flavour("tensorrt" if name == "tensorrt" else "tensorrt-rtx")
    return lambda model: TensorRTBackend(
        TypedWriter(model, pair, scales), options.engine, flavour, sample_shapes(samples), work
    )
