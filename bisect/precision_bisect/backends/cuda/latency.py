"""How long one inference takes on the device.

Inputs lie on the device and outputs stay there, bound once, so a run copies only what the graph
itself copies. Each run ends with a synchronisation. Events on ONNX Runtime's own stream would
leave out the launch of the first kernel and the last wait, some microseconds. They need a stream
that another package creates; this needs none. No CUDA graph is captured, since a node on the CPU
excludes that. So the gaps between launches are in the figures, and small models look slower than
in a deployment that captures a graph.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from precision_bisect.backends.timing import measured_latency
from precision_bisect.graphs.ort import runtime
from precision_bisect.protocols import Sample
from precision_bisect.trial import Latency

if TYPE_CHECKING:
    import onnxruntime


def session_latency(session: "onnxruntime.InferenceSession", feed: Sample, device: str) -> Latency:
    """Return the latency of a session on `device` ("cuda" or "cpu") for one feed.

    Raises what ONNX Runtime raises where a run fails.
    """
    binding = bound(session, feed, device)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return measured_latency(run)


def bound(session: "onnxruntime.InferenceSession", feed: Sample, device: str) -> Any:
    """Return a binding of the session with the feed, and room for outputs, on the device."""
    binding = session.io_binding()
    for name, array in feed.items():
        if array.dtype.kind in "OSU":
            binding.bind_cpu_input(name, array)  # text stays on the host
        else:
            value = runtime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)
            binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, device, 0)
    binding.synchronize_inputs()
    return binding
