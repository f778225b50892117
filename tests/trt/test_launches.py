"""Timed launches: what they call, and by which clock.

No GPU is needed: CUDA's runtime is a library that keeps "device" memory in main memory, PyCUDA one
that writes down what is asked of it. `test_bindings` finds what is called in the real bindings.
"""

import ctypes
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precision_bisect.backends import timing
from precision_bisect.backends.tensorrt.build import BuiltEngine
from precision_bisect.backends.tensorrt.build_remarks import Remarks
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_engine import TensorRTEngine
from precision_bisect.backends.timing import LaunchError, launches
from precision_bisect.protocols import BackendFailure

CUDART = """
#include <stdlib.h>
#include <string.h>
int cudaMalloc(void **p, size_t n) { *p = malloc(n ? n : 1); return 0; }
int cudaFree(void *p) { free(p); return 0; }
int cudaMemcpy(void *d, const void *s, size_t n, int k) { memcpy(d, s, n); return 0; }
int cudaMemcpyAsync(void *d, const void *s, size_t n, int k) { memcpy(d, s, n); return 0; }
int cudaStreamCreate(void **p) { *p = (void *)7; return 0; }
int cudaStreamSynchronize(void *p) { return 0; }
int cudaStreamDestroy(void *p) { return 0; }
"""


class Stream:
    """A stream that writes down that it was waited for."""

    ptr = 7

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def synchronize(self) -> None:
        """Note the wait."""
        self._calls.append("synchronize")


def pycuda(calls: list[str], error: str = "") -> ModuleType:
    """Return a stand-in for PyCUDA that notes its calls; launches take 2 ms by its events."""

    class Error(Exception):
        """PyCUDA's root of errors."""

    class Event:
        def record(self, stream: Any) -> None:
            calls.append(f"record on {stream.handle}")

        def synchronize(self) -> None:
            calls.append("wait for the end")
            if error:
                raise Error(error)

        def time_since(self, begin: object) -> float:
            return 2.0

    context = SimpleNamespace(push=lambda: calls.append("push"), pop=lambda: calls.append("pop"))
    driver = SimpleNamespace(
        Error=Error,
        Event=Event,
        Stream=lambda: SimpleNamespace(handle=9),
        init=lambda: None,
        Device=lambda number: SimpleNamespace(retain_primary_context=lambda: context),
    )
    module = ModuleType("pycuda")
    vars(module)["driver"] = driver
    return module


def test_without_pycuda_the_host_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock goes from before the launch to the end of the wait."""
    monkeypatch.setitem(sys.modules, "pycuda", None)
    calls: list[str] = []
    with launches(Stream(calls)) as timer:
        assert ("host_clock", 7) == (timer.method, timer.stream)
        assert 0.002 <= timer.seconds(lambda: time.sleep(0.002))
    assert ["synchronize"] == calls


def test_with_pycuda_events_lie_round_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both events are on the stream of the launch, in the device's own context, which is left."""
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "pycuda", pycuda(calls))
    with launches(Stream([])) as timer:
        assert ("cuda_events", 9) == (timer.method, timer.stream)
        assert 0.002 == timer.seconds(lambda: calls.append("launch"))
    recorded = ["record on 9", "launch", "record on 9", "wait for the end"]
    assert ["push", *recorded, "pop"] == calls


def test_an_error_of_cuda_is_one_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device did wrong comes to light in the wait; the context is left all the same."""
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "pycuda", pycuda(calls, "illegal address"))
    with pytest.raises(LaunchError, match="CUDA: illegal address"), launches(Stream([])) as timer:
        timer.seconds(lambda: None)
    assert "pop" == calls[-1]


class Context:
    """An execution context with a static and a data-dependent output that notes its calls."""

    shapes: Mapping[str, tuple[int, ...]] = {"fixed": (2, 3), "found": (-1, 2)}

    def __init__(self, *, starts: bool) -> None:
        self.allocators: dict[str, Any] = dict.fromkeys(self.shapes, "Polygraphy's")
        self.addresses: dict[str, int] = {}
        self.launched: list[int] = []
        self._starts = starts

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape, as far as it is known before a launch."""
        return self.shapes[name]

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        """Note the allocator."""
        self.allocators[name] = allocator
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        """Note the address."""
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        """Note the launch."""
        self.launched.append(stream)
        return self._starts


class Runner:
    """Polygraphy's runner as far as timing uses it, over that context."""

    def __init__(self, *, starts: bool = True) -> None:
        self.context = Context(starts=starts)
        self.stream = Stream([])
        self.engine = SimpleNamespace(is_shape_inference_io=lambda name: name == "sizes")
        self.output_allocator = SimpleNamespace(buffers={})
        self.fed: dict[str, Any] = {}

    def get_input_metadata(self, use_numpy_dtypes: bool) -> dict[str, Any]:
        """Return type and shape of the inputs, of which the second gives a shape."""
        from polygraphy.datatype import DataType

        assert not use_numpy_dtypes
        return {"x": (DataType.FLOAT32, (4,)), "sizes": (DataType.INT32, (2,))}

    def infer(self, feed: Mapping[str, Any], **settings: bool) -> dict[str, Any]:
        """Note what lies on the device, and what is on the host; return outputs there."""
        assert {"check_inputs": False, "copy_outputs_to_host": False} == settings
        self.fed = {
            name: array.tolist()
            if isinstance(array, np.ndarray)
            else (ctypes.c_float * 4).from_address(array.ptr)[:]
            for name, array in feed.items()
        }
        return {"fixed": SimpleNamespace(ptr=640), "found": SimpleNamespace(ptr=1280)}

    def deactivate(self) -> None:
        """Do nothing."""


@pytest.fixture
def cudart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Polygraphy load a CUDA runtime whose device memory is main memory."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source = tmp_path / "cudart.c"
    source.write_text(CUDART)
    library = tmp_path / "libcudart.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr("polygraphy.cuda.cuda.G_CUDA", None)


@pytest.fixture
def engine_of(
    rtx: Flavour, cudart: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Runner], TensorRTEngine]:
    """Return what makes an engine over a runner, to be timed in a moment."""
    del cudart
    monkeypatch.setattr(timing, "TIME_S", 0.0)
    monkeypatch.setattr(timing, "WARM_UP_S", 0.0)

    def make(runner: Runner) -> TensorRTEngine:
        built = BuiltEngine(engine=b"", layers="", remarks=Remarks())
        engine = TensorRTEngine(rtx, built, "", lambda layers: ())
        engine._runner = runner
        return engine

    return make


@pytest.mark.parametrize(("installed", "stream"), [(False, 7), (True, 9)])
def test_no_allocator_is_called_in_a_timed_launch(
    engine_of: Callable[[Runner], TensorRTEngine],
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    stream: int,
) -> None:
    """A static output gets the address of its buffer; one of unknown size keeps the allocator.

    An input that gives a shape stays on the host, in the type that the engine takes.
    """
    monkeypatch.setitem(sys.modules, "pycuda", pycuda([]) if installed else None)
    runner = Runner()
    with engine_of(runner) as engine:
        latency = engine.time({"x": np.arange(4, dtype=np.float32), "sizes": np.array([-1, 2])})
    context = runner.context
    assert {"x": [0.0, 1.0, 2.0, 3.0], "sizes": [-1, 2]} == runner.fed
    assert {"fixed": None, "found": "Polygraphy's"} == context.allocators
    assert {"fixed": 640} == context.addresses
    assert {stream} == set(context.launched)
    assert len(context.launched) == timing.WARM_UP_RUNS + latency.runs
    assert latency.method == ("cuda_events" if installed else "host_clock")


def test_a_launch_that_does_not_start_is_an_outcome(
    engine_of: Callable[[Runner], TensorRTEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a failed run, in one line."""
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with (
        engine_of(Runner(starts=False)) as engine,
        pytest.raises(BackendFailure, match="TensorRT did not launch the engine"),
    ):
        engine.time({"x": np.zeros(4, dtype=np.float32), "sizes": np.array([1, 1])})
