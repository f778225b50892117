"""How every session of this package uses ONNX Runtime's CUDA provider."""

from precision_bisect.ort import Providers

CUDA = "CUDAExecutionProvider"
CONVOLUTIONS = "HEURISTIC"
"""Not the quickest of a timed trial, so that a graph runs the same kernels whenever it is opened,
and opening does not wait for timing."""


def on_cuda(*, tf32: bool = False, most_bytes: int | None = None) -> Providers:
    """Return the providers that put nodes on the first GPU of CUDA.

    A session may take `most_bytes` of its memory, None for as much as there is.
    """
    options = {"use_tf32": "1" if tf32 else "0", "cudnn_conv_algo_search": CONVOLUTIONS}
    if most_bytes is not None:
        options["gpu_mem_limit"] = str(most_bytes)
    return [(CUDA, options)]
