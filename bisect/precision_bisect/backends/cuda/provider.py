"""How every session of this package uses ONNX Runtime's CUDA provider.

The first run of a session plans its convolutions. By its fallback list (DEFAULT) cuDNN does that
in 0.1 s. Where it asks a heuristic or times all algorithms it takes 2 s, and then runs ten times
as fast (NAFNet on an H100). A search runs each session a few times, a deployment for ever. So a
search opens sessions with what plans fast, and accepts an answer with the library's own choice,
EXHAUSTIVE.

If the provider does not load, ONNX Runtime falls back to its CPU provider, which computes
FP16-typed operators in FP32. So nothing is believed before a session has shown that it runs on
CUDA, and that 300 * 300 is infinite there in FP16.
"""

import contextlib
import ctypes
import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx

from precision_bisect.errors import PluginError, PrecisionBisectError, RefusedError
from precision_bisect.graphs.ort import Providers, ort_message, runtime
from precision_bisect.machine.gpu import devices

CUDA = "CUDAExecutionProvider"
_ALGORITHM = "cudnn_conv_algo_search"
_GROWTH = "arena_extend_strategy"
AS_WRITTEN: Mapping[str, str] = {"session.disable_quant_qdq": "1"}
"""Session settings: Q/DQ stay as in the file, as in the reference and the emulator."""
CPU_LAYOUTS = frozenset(("NchwcTransformer", "NhwcTransformer"))
"""Optimizers that are never wanted: they change only nodes of the CPU provider, where no layer
should run. The first has ended the process (ONNX Runtime 1.31.1), on a typed graph after
MatmulTransposeFusion."""
ONE_BY_ONE: Mapping[str, str] = {"CUDA_LAUNCH_BLOCKING": "1"}
"""The environment of a process in which each launch waits for its kernel to end."""
_NONE: Mapping[str, str] = {}
_SQUARE = """<ir_version: 8, opset_import: ["" : 17]>
    g (float16[1] x) => (float16[1] y) { y = Mul(x, x) }"""
_QUIET, _DEFAULT = 4, 2
"""Severities of ONNX Runtime's own logger."""


def deployed_provider(*, tf32: bool = False, own: Mapping[str, str] = _NONE) -> dict[str, str]:
    """Return the options that accept, time and deploy: the library's, with TF32 as asked.

    Memory grows as it is needed, where the library doubles it: 3.4 GB of weights took 64 GB so.
    Latencies are the same (NAFNet, PP-OCR det and rec on an H100). The user's `own` override all.
    """
    memory = {_GROWTH: "kSameAsRequested"}
    return {"use_tf32": "1" if tf32 else "0", _ALGORITHM: "EXHAUSTIVE", **memory, **own}


def searching(*, tf32: bool = False, own: Mapping[str, str] = _NONE) -> dict[str, str]:
    """Return the same options, but for what plans fast; the user's choice stands here, too."""
    return {**deployed_provider(tf32=tf32), _ALGORITHM: "DEFAULT", **own}


def emulating() -> dict[str, str]:
    """Return the options of the emulator, whose layers lie in the branches of Ifs.

    It is planned once and runs often, without TF32. One stream: with one for each branch, memory
    that one has freed is of no use to the others. NAFNet then fills 73 GB of an H100, with one
    stream 0.6 GB, and runs ten times as fast. Growth by doubling takes half the time here, as
    branches ask for many sizes.
    """
    memory = {_GROWTH: "kNextPowerOfTwo", "use_ep_level_unified_stream": "1"}
    return {**deployed_provider(), _ALGORITHM: "HEURISTIC", **memory}


def on_cuda(options: Mapping[str, str], *, most_bytes: int | None = None) -> Providers:
    """Return the providers that put nodes on the first GPU of CUDA with these options.

    A session may take `most_bytes` of its memory, None for as much as there is.
    """
    limit = {} if most_bytes is None else {"gpu_mem_limit": str(most_bytes)}
    return [(CUDA, {**options, **limit})]


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
    # 90000 overflows in FP16: a finite square shows that FP32 computed it.
    square = _square_on_cuda(ort)
    if not np.isinf(square):
        raise RefusedError(
            f"ONNX Runtime {ort.__version__} computes 300 * 300 in FP16 as {square} on CUDA",
            "its FP16 verdicts would be false; install another version of onnxruntime-gpu",
        )


def _square_on_cuda(ort: ModuleType) -> float:
    """Return 300 * 300 in FP16 as CUDA computes it."""
    proto = onnx.parser.parse_model(_SQUARE)
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
