"""Whether ONNX Runtime can compute FP16 on a GPU here, and if not, what is missing.

If its CUDA provider does not load, ONNX Runtime falls back to its CPU provider, which computes
FP16-typed operators in FP32. So nothing is believed before a session has shown that it runs on
CUDA, and that 300 * 300 is infinite there in FP16.
"""

import contextlib
import ctypes
import io
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from onnx import helper

from precision_bisect.backends.cuda.provider import CUDA
from precision_bisect.errors import PluginError, PrecisionBisectError, RefusedError
from precision_bisect.graphs.ort import ort_message, runtime
from precision_bisect.machine.gpu import devices

_QUIET, _DEFAULT = 4, 2
"""Severities of ONNX Runtime's own logger."""


def why_no_cuda() -> str | None:
    """Return why ONNX Runtime cannot compute FP16 on a GPU here and what to do, or None."""
    try:
        require_cuda()
    except PrecisionBisectError as error:
        return error.one_line()
    return None


# Once a process: loading CUDA takes seconds, and the answer does not change.
@cache
def require_cuda() -> None:
    """Return if ONNX Runtime computes FP16 on a GPU.

    Raises PluginError where onnxruntime is missing, too old or built without CUDA, RefusedError
    where there is no GPU, a library does not load, or FP16 is not computed in FP16.
    """
    ort = runtime()
    if CUDA not in ort.get_available_providers():
        raise PluginError(
            f"this onnxruntime ({ort.__version__}) is built without CUDA",
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        )
    if not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        raise PluginError(
            f"onnxruntime {ort.__version__} does not tell which provider takes which layer",
            "install onnxruntime-gpu 1.24 or later",
        )
    if not devices():
        raise RefusedError(
            "no NVIDIA GPU: the driver is missing or shows none",
            "run on a machine with a GPU, or let the emulator predict (--backend emulated)",
        )
    square = _square_on_cuda(ort)
    if not np.isinf(square):
        raise RefusedError(
            f"ONNX Runtime {ort.__version__} computes 300 * 300 in FP16 as {square} on CUDA",
            "its FP16 verdicts would be false; install another version of onnxruntime-gpu",
        )


def _square_on_cuda(ort: ModuleType) -> float:
    """Return 300 * 300 in FP16 as CUDA computes it."""
    half = onnx.TensorProto.FLOAT16
    x, y = (helper.make_tensor_value_info(name, half, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["y"])], "square", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # `preload_dlls` finds CUDA and cuDNN that pip installed. What it prints of missing ones is
    # said below.
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()
    ort.set_default_logger_severity(_QUIET)
    try:
        session = ort.InferenceSession(
            proto.SerializeToString(), providers=[CUDA], enable_fallback=0
        )
        # A session opens even without the provider that was asked for.
        if CUDA not in session.get_providers():
            raise RefusedError(
                f"ONNX Runtime {ort.__version__} cannot load its CUDA provider{_reason(ort)}",
                "pip install 'onnxruntime-gpu[cuda,cudnn]', or install the CUDA and cuDNN that "
                "its release notes name",
            )
        return float(session.run(None, {"x": np.full(1, 300, np.float16)})[0][0])
    except RefusedError:
        raise
    except Exception as error:  # onnxruntime's classes share no base but Exception
        raise RefusedError(
            f"ONNX Runtime {ort.__version__} does not run on this GPU: {ort_message(error)}",
            "check the driver with nvidia-smi, and that this onnxruntime-gpu serves the GPU",
        ) from error
    finally:
        ort.set_default_logger_severity(_DEFAULT)


def _reason(ort: ModuleType) -> str:
    """Return the dynamic loader's message on the provider's library, if it has one."""
    for library in sorted((Path(ort.__file__ or "").parent / "capi").glob("*providers_cuda.*")):
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return f": {error}"
    return ""
