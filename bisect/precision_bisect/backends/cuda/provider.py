"""How every session of this package uses ONNX Runtime's CUDA provider.

The first run of a session plans its convolutions. cuDNN does that in 0.1 s where it takes the
algorithm of its fallback list (DEFAULT), in 2 s where it asks a heuristic or times all of them,
and then runs ten times as fast (NAFNet on an H100). A search runs each session a few times,
a deployment for ever. So a search opens sessions with what plans fast, and accepts an answer with
the library's own choice, EXHAUSTIVE.
"""

from collections.abc import Mapping

from precision_bisect.graphs.ort import Providers

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
