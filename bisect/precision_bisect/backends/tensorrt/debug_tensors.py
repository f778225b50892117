"""The tensors that TensorRT emits during a run, copied to the host."""

import ctypes
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from precision_bisect.protocols import Sample

# By TensorRT's names. Of other types nothing is rounded.
_TYPES = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class DebugTensorError(Exception):
    """A tensor that an engine has emitted could not be copied."""


def can_show(trt: ModuleType) -> bool:
    """Tell whether a library can emit what it has not fused: TensorRT 10.12 and later can."""
    marks = hasattr(trt.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors")
    return marks and hasattr(trt.IExecutionContext, "unfused_tensors_debug_state")


def emitted(
    trt: ModuleType, runner: Any, feed: Sample
) -> tuple[Mapping[str, NDArray[Any]], Sample]:
    """Return the floats that an engine emits for one feed, by its own names, and its outputs.

    `runner` is Polygraphy's active runner, whose listener is put back. Raises DebugTensorError
    where a tensor could not be copied.
    """
    listener = _listener(trt)
    before = runner._active_debug_listener
    runner.context.unfused_tensors_debug_state = True
    runner.set_debug_listener(listener)
    try:
        outputs = {name: np.array(array) for name, array in runner.infer(feed).items()}
    finally:
        runner.context.unfused_tensors_debug_state = False
        runner.set_debug_listener(before)
    if listener.trouble:
        raise DebugTensorError(listener.trouble)
    return listener.tensors, outputs


def _listener(trt: ModuleType) -> Any:
    class Emitted(trt.IDebugListener):  # type: ignore[misc, name-defined]
        """Copies each tensor while its address is valid."""

        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.tensors: dict[str, NDArray[Any]] = {}
            self.trouble = ""

        def process_debug_tensor(
            self, addr: object, location: object, kind: Any, shape: Any, name: str, stream: int
        ) -> bool:
            """Copy one tensor; an exception must not reach TensorRT."""
            try:
                dtype = _TYPES.get(kind.name)
                if dtype is not None:
                    on_host = location == trt.TensorLocation.HOST
                    array = np.empty(tuple(shape), dtype)
                    _copy(array, address_of(addr), stream, on_host=on_host)
                    self.tensors[name] = array
            except Exception as error:
                self.trouble = f"{name}: {error}"
            return not self.trouble

    return Emitted()


def address_of(pointer: object) -> int:
    """Return the address that a binding hands over: as a number, or in a capsule."""
    if isinstance(pointer, int):
        return pointer
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(pointer, None) or 0)


def _copy(array: NDArray[Any], address: int, stream: int, *, on_host: bool) -> None:
    if on_host:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return
    from polygraphy import cuda

    to_host = cuda.MemcpyKind.DeviceToHost
    cuda.wrapper().memcpy(array.ctypes.data, address, array.nbytes, to_host, stream)
    cuda.wrapper().stream_synchronize(stream)
