"""One plan on an ONNX Runtime session: outputs, latency, and what its kernels show."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.building import BuiltSession, Trace, not_honoured, read_profile
from precision_bisect.backends.timing import measured_latency
from precision_bisect.graphs.ort import ort_message, runtime
from precision_bisect.machine.free_space import trim
from precision_bisect.protocols import Sample
from precision_bisect.trial import Evidence, Latency, TrialStatus

if TYPE_CHECKING:
    import onnxruntime


def session_latency(session: "onnxruntime.InferenceSession", feed: Sample, device: str) -> Latency:
    """Return the latency of a session on `device` ("cuda" or "cpu") for one feed.

    Inputs lie on the device and outputs stay there, bound once, so a run copies only what the
    graph itself copies. Each run ends with a synchronisation. Events on ONNX Runtime's own stream
    would leave out the launch of the first kernel and the last wait, some microseconds. No CUDA
    graph is captured, since a node on the CPU excludes that: the gaps between launches are in the
    figures, and small models look slower than in a deployment that captures a graph.

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


def as_bound(session: "onnxruntime.InferenceSession", feed: Sample) -> dict[str, NDArray[Any]]:
    """Return the feed in the types of the graph: a model may take FP16, samples are FP32."""
    halves = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    return {
        name: array.astype(np.float16) if name in halves else array for name, array in feed.items()
    }


class SessionEngine:
    """A session for one plan on `device` ("cuda" or "cpu").

    The first run is profiled: the kernels that ran, not those that were planned, tell whether the
    plan was obeyed.
    """

    def __init__(self, built: BuiltSession, device: str) -> None:
        self._built: BuiltSession | None = built
        self._device = device
        self._trace: Trace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the session, which frees its device memory."""
        self._built = None
        trim()

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name. Raises BackendFailure.

        The first run raises it, too, where a kernel of the CPU provider computed a low layer.
        """
        session = self._open.session
        names = [output.name for output in session.get_outputs()]
        try:
            values = session.run(names, as_bound(session, feed), self._first())
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error
        # Profiling ends with the first run.
        if self._trace is None:
            self._trace = self._look()
        return dict(zip(names, values, strict=True))

    def time(self, feed: Sample) -> Latency | None:
        """Measure the latency, see `latency`. Raises BackendFailure."""
        session = self._open.session
        if self._trace is None:
            # It ends the profile, which makes runs slower by half and more.
            self.run(feed)
        try:
            return session_latency(session, as_bound(session, feed), self._device)
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error

    def evidence(self) -> Evidence:
        """Return the remarks of the build, and after a run what its kernels show."""
        built = self._open
        trace = self._trace
        honours = [trace.honour(name, built.high) for name in built.kept] if trace else ()
        return Evidence(honours=honours, notes=built.notes, opening=built.opening)

    def save(self, folder: Path) -> None:
        """Save nothing: a session is made from the typed graph alone."""

    @property
    def _open(self) -> BuiltSession:
        if self._built is None:
            raise RuntimeError("this engine was left")
        return self._built

    def _first(self) -> "onnxruntime.RunOptions | None":
        """Return how the first run gives back what only its planning needs; None for later ones.

        cuDNN tries algorithms in room of many sizes, and the arena keeps it all.
        """
        if self._trace is not None or self._device != "cuda":
            return None
        options = runtime().RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
        return options

    def _look(self) -> Trace:
        """Return what the kernels of the first run show. Raises BackendFailure."""
        built = self._open
        profile = Path(built.session.end_profiling())
        trace = Trace(read_profile(profile), built.layers)
        profile.unlink()
        if stray := trace.on_cpu(built.low):
            raise not_honoured(stray)
        return trace
