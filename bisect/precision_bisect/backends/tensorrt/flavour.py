"""Which TensorRT libraries are installed, and what they can do.

Everything is decided by what a library has, never by its version. TensorRT 8.6 to 10.x mark
precisions on layers (weak typing). 10.x, 11.x and TensorRT-RTX take them from the graph (strong
typing). Only TensorRT-RTX builds for a GPU that is not there.
"""

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Literal, TypeAlias, get_args

from precision_bisect.errors import PluginError, RefusedError, in_words
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.gpu import GpuDevice, cuda_version, devices, driver_version
from precision_bisect.precisions import HALF_NAMES, PrecisionName

FlavourName: TypeAlias = Literal["tensorrt", "tensorrt-rtx"]
NAMES: tuple[FlavourName, ...] = get_args(FlavourName)
_MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_CUDAS = ("", "_cu11", "_cu12", "_cu13")
_PARTS = ("", "_bindings", "_libs")
FP8_CAPABILITY = "8.9"
"""The lowest compute capability with FP8; for lower ones every build fails."""
WITHOUT_KERNEL = {"int8": "ConvTranspose", "fp8": "ConvTranspose", "bf16": "ConvTranspose"}
"""Operators that TensorRT-RTX 1.7.1 parses in a type, and does not build or builds in another."""
_RECURRENT = ("GRU", "LSTM", "RNN")
# The position of a recurrence's `sequence_lens`.
_LENGTHS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One installed TensorRT library.

    With `weak` layers can be marked with a precision, with `strong` precisions can come from the
    graph. `targets` are the compute capabilities that it can build for without such a GPU, empty
    if it builds only for the GPU of this machine. `device` and `compute_capability` are those of
    the first GPU, None without one. `why_not` says in one sentence why engines cannot run here and
    what to do; it is empty if they `can_run`.
    """

    name: FlavourName
    module: ModuleType
    version: str
    weak: bool
    strong: bool
    targets: tuple[str, ...]
    device: str | None
    compute_capability: str | None
    why_not: str

    @property
    def can_run(self) -> bool:
        """Whether this machine's GPU can run the engines that it builds."""
        return not self.why_not


def load_flavour(name: FlavourName) -> Flavour:
    """Import one library and look at what it can do; Polygraphy is left alone.

    Raises PluginError where it is not installed or does not load.
    """
    module = _import(name)
    gpus = devices()
    gpu = gpus[0] if gpus else None
    # TensorRT 11 has no FP16 flag and no settable precision.
    weak = hasattr(module.ILayer, "precision") and hasattr(module.BuilderFlag, "FP16")
    strong_flag = hasattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    targets = _targets(module)
    return Flavour(
        name=name,
        module=module,
        version=module.__version__,
        weak=weak,
        # A library that has only strong typing needs no flag for it.
        strong=strong_flag or not weak,
        targets=targets,
        device=gpu.name if gpu else None,
        compute_capability=gpu.compute_capability if gpu else None,
        why_not=_why_not(f"{name} {module.__version__}", gpu, targets),
    )


def distributions(name: FlavourName) -> dict[str, str]:
    """Return the installed packages of a library, for any CUDA, each with its version.

    `import tensorrt` is served by `tensorrt` or, for one CUDA, by `tensorrt_cu12`. If neither is
    there, a leftover part may be: bindings, or else libraries.
    """
    for part in _PARTS:
        versions = {}
        for package in (f"{_MODULES[name]}{cuda}{part}" for cuda in _CUDAS):
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
        if versions:
            return versions
    return {}


def absent(name: FlavourName) -> bool:
    """Tell whether nothing of the library is there, from pip or put there in another way."""
    spec = importlib.util.find_spec(_MODULES[name])
    return not distributions(name) and (spec is None or spec.origin is None)


def cannot_start(flavour: Flavour) -> RefusedError:
    """Return what to say if the library loads, but makes no builder or runtime."""
    packages = ", ".join(
        f"{package} {release}" for package, release in distributions(flavour.name).items()
    )
    driver, cuda = driver_version(), cuda_version()
    served = f"driver {driver} serves CUDA up to {cuda}" if cuda else "there is no driver"
    return RefusedError(
        f"{flavour.name} {flavour.version} ({packages or 'no package of pip'}) cannot start CUDA: "
        f"{served}",
        "install a driver for the CUDA that it is made for, or a TensorRT for this driver's CUDA, "
        "such as tensorrt-cu12",
    )


def use_in_polygraphy(flavour: Flavour) -> None:
    """Make Polygraphy use this library for the rest of the process.

    Polygraphy picks one library when its TensorRT modules are imported, by `USE_TENSORRT_RTX` of
    `polygraphy.config`. Raises RefusedError if they are loaded with the other library already.
    """
    from polygraphy import config
    from polygraphy.mod.trt_importer import lazy_import_trt

    rtx = flavour.name == "tensorrt-rtx"
    if bool(config.USE_TENSORRT_RTX) is rtx:
        return
    if "polygraphy.backend.trt" in sys.modules:
        raise RefusedError(
            f"Polygraphy uses the other TensorRT library in this process, so {flavour.name} "
            "cannot be used, too",
            "start another process for it",
        )
    config.USE_TENSORRT_RTX = rtx
    # Modules that Polygraphy's comparators import hold a lazy reference to the earlier library.
    for name, user in list(sys.modules.items()):
        if name.startswith("polygraphy.") and "trt" in vars(user):
            setattr(user, "trt", lazy_import_trt())  # noqa: B010 - a module's global


def _import(name: FlavourName) -> ModuleType:
    hint = install_hint(name)
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name != _MODULES[name]:
            raise PluginError(f"{name} does not load: {error}", hint) from error
        raise PluginError(f"{name} is not {_there(name)}", hint) from error
    except Exception as error:  # a library that it needs is missing, broken or of another version
        raise PluginError(f"{name} does not load: {in_words(error)}", hint) from error
    if module.__file__ is None:
        # Any folder of that name beside the user's files can be imported, as a namespace package.
        raise PluginError(f"{name} is not {_there(name)}", hint)
    if not hasattr(module, "ILayer"):
        raise PluginError(
            f"{name} does not load: {module.__file__} is another module of that name",
            "rename it, or start elsewhere",
        )
    return module


def install_hint(name: FlavourName) -> str:
    """Return what to install; a part that is there is completed in its own version."""
    for package, release in distributions(name).items():
        whole = package.removesuffix("_bindings").removesuffix("_libs")
        return f"{package} {release} is there: pip install --force-reinstall {whole}=={release}"
    return f"pip install {suited(name)}"


def suited(name: FlavourName) -> str:
    """Return what pip should install of a library, for the CUDA that this driver serves.

    Without a driver it is the newest.
    """
    cuda = cuda_version()
    old = cuda is not None and int(cuda.partition(".")[0]) < 13
    if name == "tensorrt-rtx":
        return "tensorrt_rtx_cu12" if old else "tensorrt_rtx"
    package = "tensorrt-cu12" if old else "tensorrt-cu13"
    return f"'{package}==10.*', or 11.*, by the version that you deploy"


def _there(name: FlavourName) -> str:
    return "whole" if distributions(name) else "installed"


def _targets(module: ModuleType) -> tuple[str, ...]:
    """Return the compute capabilities, as "8.6", of the library's enumeration of them."""
    if not hasattr(module, "ComputeCapability"):
        return ()
    numbers = [
        name.removeprefix("SM")
        for name in module.ComputeCapability.__members__
        if name.startswith("SM")
    ]
    return tuple(f"{number[:-1]}.{number[-1]}" for number in numbers)


def _why_not(library: str, gpu: GpuDevice | None, targets: Sequence[str]) -> str:
    if gpu is None:
        return "no GPU that CUDA can use was found; install NVIDIA's driver or use another machine"
    if targets and gpu.compute_capability not in targets:
        return (
            f"{library} serves compute capabilities {', '.join(targets)}, and {gpu.name} has "
            f"{gpu.compute_capability}; use TensorRT or ONNX Runtime on this GPU"
        )
    return ""


def has_fp8(capability: str) -> bool:
    """Tell whether GPUs of a compute capability, such as "8.9", compute in FP8."""
    return _number(capability) >= _number(FP8_CAPABILITY)


def without_kernel(name: FlavourName, model: Model, kind: PrecisionName) -> dict[LayerName, str]:
    """Return the candidates that the library parses in a type without a kernel, and why."""
    return {
        layer.name: f"{name} has no {kind} kernel for {layer.op_type}"
        for layer in model.table.candidates
        if name == "tensorrt-rtx" and layer.op_type == WITHOUT_KERNEL.get(kind)
    }


def refused_by_every_parser(model: Model, kind: PrecisionName) -> dict[LayerName, str]:
    """Return the candidates that no parser of TensorRT takes in a type that ONNX has, and why.

    It masks short sequences with an FP32 zero: RNNHelpers.cpp of github.com/onnx/onnx-tensorrt for
    10.0 to 10.10, and TensorRT-RTX 1.7.1. To a library that is there, its parser says so itself.
    """
    if kind not in HALF_NAMES:
        return {}
    nodes = {node.name: node for node in model.proto.graph.node}
    return {
        layer.name: f"TensorRT's parser takes no {layer.op_type} with sequence_lens in {kind}"
        for layer in model.table.candidates
        if layer.op_type in _RECURRENT and any(nodes[layer.name].input[_LENGTHS : _LENGTHS + 1])
    }


def _number(capability: str) -> tuple[int, ...]:
    # As numbers: "12.0" sorts before "8.9" as text.
    return tuple(map(int, capability.split(".")))
