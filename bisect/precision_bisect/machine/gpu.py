"""The NVIDIA GPUs of this machine, asked of the driver itself.

No third-party module is needed: `libcuda` comes with the driver. Signatures are those of CUDA's
driver API (cuda.h) and of NVML (nvml.h). Asking initialises CUDA in this process, so children that
use a GPU must be spawned, not forked.
"""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

CUDA_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
NVML_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NAME_BYTES = 256
# NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE.
_VERSION_BYTES = 80
OUT_OF_MEMORY = "out of GPU memory: "
"""How the message of a trial begins that wants for memory."""
# How TensorRT, CUDA, cuDNN, cuBLAS and ONNX Runtime say it.
_FULL = re.compile(
    r"OutOfMemory|out of memory|GPU memory .*could not be allocated|insufficient memory"
    r"|memory is insufficient|failed to allocate memory|ALLOC_FAILED|BFCArena",
    re.I,
)


class _NoAnswerError(Exception):
    """The driver is absent, or refused a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One GPU: its name, compute capability as "8.6", and memory in MiB."""

    name: str
    compute_capability: str
    memory_mib: int


def full(text: str) -> bool:
    """Tell whether a library's error says that memory is full."""
    return _FULL.search(text) is not None


def devices(libraries: Sequence[str] = CUDA_LIBRARIES) -> list[GpuDevice]:
    """Return the GPUs that CUDA may use, in CUDA's order; none where there is no driver.

    CUDA_VISIBLE_DEVICES is obeyed. Never raises. `libraries` are the names to look the driver's
    library up by.
    """
    try:
        return _devices(_load(libraries))
    except _NoAnswerError:
        return []


def cuda_version(libraries: Sequence[str] = CUDA_LIBRARIES) -> str | None:
    """Return the newest CUDA version that the driver serves, as "13.0"; None without a driver."""
    version = ctypes.c_int()
    try:
        _call(_load(libraries), "cuDriverGetVersion", ctypes.byref(version))
    except _NoAnswerError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def driver_version(libraries: Sequence[str] = NVML_LIBRARIES) -> str | None:
    """Return the driver's version, as "580.159.03"; None where there is no driver."""
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    try:
        nvml = _load(libraries)
        _call(nvml, "nvmlInit_v2")
        try:
            _call(nvml, "nvmlSystemGetDriverVersion", text, ctypes.c_uint(_VERSION_BYTES))
        finally:
            _call(nvml, "nvmlShutdown")
    except _NoAnswerError:
        return None
    return text.value.decode(errors="replace")


def _devices(cuda: ctypes.CDLL) -> list[GpuDevice]:
    count = ctypes.c_int()
    _call(cuda, "cuInit", ctypes.c_uint(0))
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return [_device(cuda, ordinal) for ordinal in range(count.value)]


def _device(cuda: ctypes.CDLL, ordinal: int) -> GpuDevice:
    handle, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(cuda, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(ordinal))
    _call(cuda, "cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), handle)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    capability = [ctypes.c_int(), ctypes.c_int()]
    for value, attribute in zip(capability, (_MAJOR, _MINOR), strict=True):
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
    return GpuDevice(
        name=name.value.decode(errors="replace"),
        compute_capability=".".join(str(part.value) for part in capability),
        memory_mib=memory.value // 2**20,
    )


def _load(libraries: Sequence[str]) -> ctypes.CDLL:
    for name in libraries:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise _NoAnswerError(f"none of {', '.join(libraries)} can be loaded")


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function that returns 0 for success. Raises _NoAnswerError for anything else."""
    try:
        status = getattr(library, function)(*arguments)
    except AttributeError as error:
        raise _NoAnswerError(f"the driver has no {function}") from error
    if status != 0:
        raise _NoAnswerError(f"{function} returned {status}")
