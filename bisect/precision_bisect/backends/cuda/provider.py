"""How every session of this package uses ONNX Runtime's CUDA provider."""

from collections.abc import Mapping

from precision_bisect.model.ort import Providers

CUDA = "CUDAExecutionProvider"
CONVOLUTIONS = "HEURISTIC"
"""Not the quickest algorithm of a timed trial (EXHAUSTIVE, the default): a graph then runs the
same kernels whenever it is opened, and opening does not wait for timing."""
AS_WRITTEN: Mapping[str, str] = {"session.disable_quant_qdq": "1"}
"""Session settings: Q/DQ stay as in the file, as in the reference and the emulator."""
CPU_LAYOUTS = frozenset(("NchwcTransformer", "NhwcTransformer"))
"""Optimizers that are never wanted: they change only nodes of the CPU provider, where no layer
should run. The first has ended the process (ONNX Runtime 1.31.1), on a typed graph after
MatmulTransposeFusion."""
_NONE: Mapping[str, str] = {}


def cuda_options(*, tf32: bool = False, own: Mapping[str, str] = _NONE) -> dict[str, str]:
    """Return the provider's options; the user's `own` ones override those of this package."""
    options = {"use_tf32": "1" if tf32 else "0", "cudnn_conv_algo_search": CONVOLUTIONS}
    return {**options, **own}


def on_cuda(
    *, tf32: bool = False, most_bytes: int | None = None, own: Mapping[str, str] = _NONE
) -> Providers:
    """Return the providers that put nodes on the first GPU of CUDA.

    A session may take `most_bytes` of its memory, None for as much as there is.
    """
    options = cuda_options(tf32=tf32, own=own)
    if most_bytes is not None:
        options["gpu_mem_limit"] = str(most_bytes)
    return [(CUDA, options)]
