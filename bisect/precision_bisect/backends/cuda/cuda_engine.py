"""One plan on an ONNX Runtime session: outputs, latency, and what its kernels show."""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.building import BuiltSession, Trace, not_honoured, read_profile
from precision_bisect.backends.timing import measured_latency
from precision_bisect.graphs.ort import ort_message, runtime
from precision_bisect.machine.free_space import trim
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.trial import Evidence, Latency, LatencyMethod, TrialStatus

if TYPE_CHECKING:
    import onnxruntime

# Each feed of a session has a graph of its own, as that reads where it was captured.
_GRAPHS = count()


class BoundRun:
    """One feed bound to a session on `device` ("cuda" or "cpu"), to be run again and again.

    Inputs lie on the device and outputs stay there, bound once, so a run copies only what the
    graph itself copies. Each run ends with a synchronisation. Events on ONNX Runtime's own stream
    would leave out the launch of the first kernel and the last wait, some microseconds.

    A session that `captures` captures the launches as a CUDA graph, and replays them: without the
    gaps between launches, which are half of the time of small models. Raises what ONNX Runtime
    raises where a run fails.
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        feed: Sample,
        device: str,
        *,
        captures: bool = False,
    ) -> None:
        self._session = session
        self._binding = bound(session, feed, device)
        self._options = run_options()
        self._method: LatencyMethod = "host_clock"
        if captures:
            self()
            # What waits for the device in between, such as a NonZero, is no graph.
            with suppress(Exception):
                self._capture()

    def __call__(self) -> None:
        """Run once, and wait for the end."""
        self._session.run_with_iobinding(self._binding, self._options)
        self._binding.synchronize_outputs()

    def _capture(self) -> None:
        """Have later runs replay a graph, which the next one captures."""
        # It writes where it wrote when it was captured: outputs stay where they are.
        outputs = zip(self._session.get_outputs(), self._binding.get_outputs(), strict=True)
        for output, value in outputs:
            self._binding.bind_ortvalue_output(output.name, value)
        captured = run_options(next(_GRAPHS))
        self._session.run_with_iobinding(self._binding, captured)
        self._options, self._method = captured, "cuda_graph"

    def latency(self) -> Latency:
        """Return how long a run takes."""
        return measured_latency(self, self._method)


def run_options(graph: int = -1) -> "onnxruntime.RunOptions":
    """Return the options of a run of this CUDA graph, -1 for one that is launched as usual."""
    options = runtime().RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


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
        self._timed: tuple[Sample, BoundRun] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the session, which frees its device memory."""
        self._built = self._timed = None
        trim()

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name. Raises BackendFailure.

        The first run raises it, too, where a kernel of the CPU provider computed a low layer.
        """
        session = self._open.opened.session
        names = [output.name for output in session.get_outputs()]
        try:
            values = session.run(names, as_bound(session, feed), self._run_options())
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error
        # Profiling ends with the first run.
        if self._trace is None:
            self._trace = self._look()
        return dict(zip(names, values, strict=True))

    def time(self, feed: Sample) -> Latency | None:
        """Measure the latency, see `BoundRun`. Raises BackendFailure."""
        try:
            # Once a feed: a graph reads where it read when it was captured.
            if self._timed is None or self._timed[0] is not feed:
                self._timed = feed, self._bound(feed)
            return self._timed[1].latency()
        except BackendFailure:
            raise
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error

    def _bound(self, feed: Sample) -> BoundRun:
        built = self._open
        opened = built.opened
        # A batch that is written into the file has a session of its own.
        fixed = {value.name: value.shape[:1] for value in opened.session.get_inputs()}
        batch = next((len(array) for array in feed.values() if array.ndim), 0)
        if any(isinstance(n, int) and n != batch for sizes in fixed.values() for n in sizes):
            opened = built.rebatched(batch)
            # A profile makes runs slower by half and more.
            Path(opened.session.end_profiling()).unlink()
        elif self._trace is None:
            # That ends the profile.
            self.run(feed)
        values = as_bound(opened.session, feed)
        return BoundRun(opened.session, values, self._device, captures=opened.captures)

    def evidence(self) -> Evidence:
        """Return the remarks of the build, and after a run what its kernels show."""
        built = self._open
        trace = self._trace
        honours = [trace.honour(name, built.high) for name in built.kept] if trace else ()
        return Evidence(honours=honours, notes=built.opened.notes, opening=built.opened.opening)

    def save(self, folder: Path) -> None:
        """Save nothing: a session is made from the typed graph alone."""

    @property
    def _open(self) -> BuiltSession:
        if self._built is None:
            raise RuntimeError("this engine was left")
        return self._built

    def _run_options(self) -> "onnxruntime.RunOptions":
        """Return the options of a run that is not timed.

        The first one gives back what only its planning needs: cuDNN tries algorithms in room of
        many sizes, and the arena keeps it all.
        """
        options = run_options()
        if self._trace is None and self._device == "cuda":
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
        return options

    def _look(self) -> Trace:
        """Return what the kernels of the first run show. Raises BackendFailure."""
        built = self._open
        profile = Path(built.opened.session.end_profiling())
        trace = Trace(read_profile(profile), built.layers)
        profile.unlink()
        if stray := trace.on_cpu(built.low):
            raise not_honoured(stray)
        return trace
